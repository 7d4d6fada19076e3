/* Prefetches the memory of configs before the fold reads it.
 *
 * A write to one of 100,000 keys follows seven pointers, each to uncached memory: three quarters of
 * the fold is waiting. The keys of a batch are independent, so their memory can be fetched together:
 * step by step, each step for a whole block.
 *
 * The data read here decides nothing: these are only hints. The layout of a dict is known only from
 * Python's own headers, for exactly the release compiled for. If they are missing, or from an
 * unexamined version, or another release is running, or with NO_WARM, `warm` does nothing.
 */
#define BLOCK 32        /* changes at a time: their memory must fit into the cache together */
#define FEW_CONFIGS 4096 /* up to this number, nearly everything is cached anyway */
#define TEXT_LINES 6    /* lines of a value: most are not longer */
#define LINE 64

#if defined(__has_include) && PY_VERSION_HEX < 0x030e0000 && !defined(Py_GIL_DISABLED) && !defined(NO_WARM)
#if __has_include("internal/pycore_dict.h")
#define KNOWS_DICTS
#define Py_BUILD_CORE 1
#undef _PyGC_FINALIZED /* a macro outside, a function inside */
#include "internal/pycore_dict.h"
#undef Py_BUILD_CORE
#endif
#endif

#ifdef KNOWS_DICTS
static void ask_for(const void *at, int lines)
{
    for (int i = 0; i < lines; i++) __builtin_prefetch((const char *)at + LINE * i);
}

/* The position in the table of a hash's entry; the width of a position in bytes is a power of 2. */
static const char *place_of(const PyDictKeysObject *keys, Py_hash_t hash)
{
    size_t mask = ((size_t)1 << keys->dk_log2_size) - 1;
    return keys->dk_indices + (((size_t)hash & mask) << (keys->dk_log2_index_bytes - keys->dk_log2_size));
}

/* The entry of a hash, unless another one was inserted there first. */
static const PyDictKeyEntry *entry_of(const PyDictKeysObject *keys, Py_hash_t hash)
{
    const char *place = place_of(keys, hash);
    int width = 1 << (keys->dk_log2_index_bytes - keys->dk_log2_size);
    if (width != 4 || keys->dk_kind != DICT_KEYS_GENERAL) return NULL;
    int32_t index = *(const int32_t *)place;
    if (index < 0 || index >= keys->dk_nentries) return NULL;
    return (const PyDictKeyEntry *)(keys->dk_indices + ((size_t)1 << keys->dk_log2_index_bytes)) + index;
}

/* Prefetches the resources' entries, keys, names, values, and their texts; -1 for an exception. */
static int warm(PyObject *const *resources, Py_ssize_t count, PyObject *configs)
{
    if (count < 2 || PyDict_GET_SIZE(configs) <= FEW_CONFIGS || Py_Version != PY_VERSION_HEX) return 0;
    Py_hash_t hash[BLOCK];
    const PyDictKeyEntry *entry[BLOCK];
    for (Py_ssize_t i = 0; i < count; i++)
        if ((hash[i] = PyObject_Hash(resources[i])) == -1) return -1;
    const PyDictKeysObject *keys = ((PyDictObject *)configs)->ma_keys;
    for (Py_ssize_t i = 0; i < count; i++) ask_for(place_of(keys, hash[i]), 1);
    for (Py_ssize_t i = 0; i < count; i++)
        if ((entry[i] = entry_of(keys, hash[i])) != NULL) ask_for(entry[i], 1);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (entry[i] == NULL) continue;
        if (entry[i]->me_key == NULL || entry[i]->me_value == NULL) { entry[i] = NULL; continue; }
        ask_for(entry[i]->me_key, 1);
        ask_for(entry[i]->me_value, 1);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (entry[i] == NULL) continue;
        PyObject *key = entry[i]->me_key, *values = entry[i]->me_value;
        if (!PyTuple_CheckExact(key) || PyTuple_GET_SIZE(key) != 2 || !PyDict_CheckExact(values)) {
            entry[i] = NULL;
            continue;
        }
        ask_for(PyTuple_GET_ITEM(key, 1), 2);
        ask_for(((PyDictObject *)values)->ma_keys, 3);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (entry[i] == NULL) continue;
        const PyDictKeysObject *inner = ((PyDictObject *)entry[i]->me_value)->ma_keys;
        if (inner->dk_kind != DICT_KEYS_UNICODE || inner->dk_nentries < 1) continue;
        const PyDictUnicodeEntry *first = (const PyDictUnicodeEntry *)(
            inner->dk_indices + ((size_t)1 << inner->dk_log2_index_bytes));
        if (first->me_value != NULL) ask_for(first->me_value, TEXT_LINES);
    }
    return 0;
}
#else
static int warm(PyObject *const *resources, Py_ssize_t count, PyObject *configs) { return 0; }
#endif
