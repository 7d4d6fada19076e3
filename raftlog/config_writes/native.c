/* The hot messages of config writes, parsed and built without an object per field.
 *
 * Optional: writes.py and records.py do the same in Python and are the specification; tests compare
 * the bytes of both. Messages that do not have exactly the expected shape are left to protobuf: nothing
 * is refused here.
 *
 * One function for each format on the path of every write: a request, encoded and decoded; a
 * record, encoded and decoded; a reply; the fold; and two checks of each write, before it is parsed and
 * before it is decided. Microseconds of CPU for a write, here and in writes.py
 * (`python -m benchmarks.codec`, 64 writes of one change each, warm):
 *   client: request 0.14, 4.4. Leader: ends 0.01, 0.14; grouped 0.16, 3.3; run 0.01, 0.06;
 *   encoded 0.04, 0.83; replies 0.02, 1.8. Follower: decoded 0.08, 0.89. All nodes: fold 0.35, 0.74.
 *   Brokers: entity 0.05, 0.14.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include "warm.h"

typedef struct { const uint8_t *at, *end; } Span;

#define TAG_ITEM 0x0a          /* field 1, length-delimited */
#define RECORD_TYPE_CONFIG 4
#define RECORD_OVERHEAD 8      /* u16 type, u8 version, u8 zero, u32 length */
#define MAX_ACKS 2
#define MAX_CHANGES 1024       /* per request, as in writes.py */

/* --- reading ------------------------------------------------------------------------------- */

static int read_varint(Span *in, uint64_t *value)
{
    uint64_t result = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (in->at >= in->end) return 0;
        uint8_t byte = *in->at++;
        if (shift == 63 && byte > 1) return 0;
        result |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) { *value = result; return 1; }
    }
    return 0;
}

static int read_span(Span *in, Span *out)
{
    uint64_t length;
    if (!read_varint(in, &length) || length > (uint64_t)(in->end - in->at)) return 0;
    out->at = in->at;
    out->end = in->at = in->at + length;
    return 1;
}

static int same(Span a, Span b)
{
    Py_ssize_t length = a.end - a.at;
    return length == b.end - b.at && (length == 0 || memcmp(a.at, b.at, length) == 0);
}

static PyObject *text(Span span)
{
    return PyUnicode_DecodeUTF8((const char *)span.at, span.end - span.at, NULL);
}

/* A string that often equals the previous one, whose object is then reused. */
static PyObject *text_again(Span span, Span *last, PyObject **known)
{
    if (*known == NULL || !same(span, *last)) {
        PyObject *fresh = text(span);
        if (fresh == NULL) return NULL;
        Py_XSETREF(*known, fresh);
        *last = span;
    }
    return Py_NewRef(*known);
}

typedef struct { Span bytes; uint64_t number; } Field;

/* Reads a message with exactly the fields of these tags, each once, in this order. */
static int read_fields(Span in, const uint8_t *tags, Field *fields)
{
    while (in.at < in.end) {
        uint64_t tag;
        if (!read_varint(&in, &tag)) return 0;
        while (*tags && *tags != tag) tags++, fields++;
        if (!*tags++) return 0;
        if (tag & 2 ? !read_span(&in, &fields->bytes) : !read_varint(&in, &fields->number)) return 0;
        fields++;
    }
    return 1;
}

typedef struct { uint64_t id; long timeout_ms, acks; Span cluster_id, principal, host, body; } Request;

static int read_request(Span in, Request *request)
{
    Field field[6] = {0}, client[2] = {0};
    if (!read_fields(in, (const uint8_t *)"\x08\x12\x18\x20\x2a\x82", field)
        || !read_fields(field[4].bytes, (const uint8_t *)"\x0a\x32", client)
        || field[2].number > INT32_MAX || field[3].number > MAX_ACKS || !field[5].bytes.at) return 0;
    *request = (Request){field[0].number, (long)field[2].number, (long)field[3].number, field[1].bytes,
                         client[0].bytes, client[1].bytes, field[5].bytes};
    return 1;
}

/* Whether all characters are printable ASCII. */
static int printable(Span span)
{
    uint8_t wrong = 0;
    for (const uint8_t *at = span.at; at < span.end; at++) wrong |= (uint8_t)(*at - 0x20) > 0x5e;
    return !wrong;
}

/* The last key read, and whether all texts so far are printable. */
typedef struct { Span last; PyObject *name; int printable; } Names;

/* A tuple of numbers and texts cannot be part of a cycle, so the collector need not track it. */
static PyObject *beyond_collection(PyObject *tuple)
{
    if (tuple != NULL) PyObject_GC_UnTrack(tuple);
    return tuple;
}

/* Returns (type, name, key, value), or NULL without an exception for any other message. */
static PyObject *change_of(const Field *type, Span name, Span key, PyObject *value, Names *names)
{
    PyObject *parts[4] = {NULL, NULL, NULL, value}, *change = NULL;
    if (type->number <= INT32_MAX && value != NULL && (parts[0] = PyLong_FromLong((long)type->number))
        && (parts[1] = text(name)) && (parts[2] = text_again(key, &names->last, &names->name)))
        change = beyond_collection(PyTuple_Pack(4, parts[0], parts[1], parts[2], parts[3]));
    else if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
    for (int i = 0; i < 4; i++) Py_XDECREF(parts[i]);
    return change;
}

/* Returns the change of one resource with one key that is set; see change_of. */
static PyObject *read_resource(Span in, Names *names)
{
    Field field[3] = {0}, config[3] = {0};
    if (!read_fields(in, (const uint8_t *)"\x08\x12\x1a", field) || !field[2].bytes.at
        || !read_fields(field[2].bytes, (const uint8_t *)"\x0a\x10\x1a", config) || config[1].number)
        return NULL;
    Span name = field[1].bytes, key = config[0].bytes, value = config[2].bytes;
    names->printable &= printable(name) && printable(key) && printable(value);
    return change_of(&field[0], name, key, text(value), names);
}

/* Returns the change in a ConfigRecord; see change_of. A value of None deletes the key. */
static PyObject *read_record(Span in, Names *names)
{
    Field field[4] = {0};
    if (!read_fields(in, (const uint8_t *)"\x08\x12\x1a\x22", field)) return NULL;
    PyObject *value = field[3].bytes.at ? text(field[3].bytes) : Py_NewRef(Py_None);
    return change_of(&field[0], field[1].bytes, field[2].bytes, value, names);
}

/* Appends the changes of a body; returns their number, 0 for any other body, -1 for an exception. */
static Py_ssize_t read_body(Span in, Names *names, PyObject *changes)
{
    Py_ssize_t before = PyList_GET_SIZE(changes), count = 0;
    while (in.at < in.end) {
        Span resource;
        PyObject *change;
        if (count >= MAX_CHANGES || *in.at++ != TAG_ITEM || !read_span(&in, &resource)
            || (change = read_resource(resource, names)) == NULL) {
            if (PyErr_Occurred()) return -1;
            return PyList_SetSlice(changes, before, before + count, NULL) < 0 ? -1 : 0;
        }
        int failed = PyList_Append(changes, change);
        Py_DECREF(change);
        if (failed) return -1;
        count++;
    }
    return count;
}

/* --- groups of requests -------------------------------------------------------------------- */

typedef struct { Request first; PyObject *ids, *changes, *counts; Py_ssize_t bytes; int printable; } Group;

static void clear_group(Group *group)
{
    Py_CLEAR(group->ids);
    Py_CLEAR(group->changes);
    Py_CLEAR(group->counts);
}

static int end_group(Group *group, PyObject *items)
{
    if (group->ids == NULL) return 0;
    PyObject *cluster_id = text(group->first.cluster_id), *principal = text(group->first.principal);
    PyObject *host = text(group->first.host), *item = NULL;
    if (cluster_id && principal && host)
        item = Py_BuildValue("(OOOllOOOnO)", group->ids, group->changes, group->counts,
                             group->first.timeout_ms, group->first.acks, cluster_id, principal, host,
                             group->bytes, group->printable ? Py_True : Py_False);
    Py_XDECREF(cluster_id);
    Py_XDECREF(principal);
    Py_XDECREF(host);
    clear_group(group);
    if (item == NULL) return -1;
    int failed = PyList_Append(items, item);
    Py_DECREF(item);
    return failed;
}

static int readable(Span span)
{
    PyObject *found = text(span);
    if (found == NULL) { PyErr_Clear(); return 0; }
    Py_DECREF(found);
    return 1;
}

static int joins(const Group *group, const Request *request, Py_ssize_t length, const Py_ssize_t max[2])
{
    const Request *first = &group->first;
    return group->ids != NULL && PyList_GET_SIZE(group->ids) < max[0] && group->bytes + length <= max[1]
        && first->timeout_ms == request->timeout_ms && first->acks == request->acks
        && same(first->cluster_id, request->cluster_id) && same(first->principal, request->principal)
        && same(first->host, request->host);
}

/* Returns 1 if the request may be in a group, 0 if not, -1 for an exception. */
static int add_request(Span in, Group *group, Names *names, PyObject *items, const Py_ssize_t max[2])
{
    Request request;
    Py_ssize_t length = in.end - in.at;
    if (!read_request(in, &request)) return 0;
    PyObject *changes = PyList_New(0);
    if (changes == NULL) return -1;
    names->printable = 1;
    Py_ssize_t count = read_body(request.body, names, changes);
    if (count <= 0) { Py_DECREF(changes); return (int)count; }
    if (!joins(group, &request, length, max)) {
        if (!readable(request.cluster_id) || !readable(request.principal) || !readable(request.host)) {
            Py_DECREF(changes);
            return 0;
        }
        if (end_group(group, items) < 0) { Py_DECREF(changes); return -1; }
        group->first = request;
        group->bytes = 0;
        group->printable = 1;
        group->ids = PyList_New(0);
        group->changes = PyList_New(0);
        group->counts = PyList_New(0);
        if (!group->ids || !group->changes || !group->counts) { Py_DECREF(changes); return -1; }
    }
    PyObject *id = PyLong_FromUnsignedLongLong(request.id), *number = PyLong_FromSsize_t(count);
    Py_ssize_t end = PyList_GET_SIZE(group->changes);
    int failed = id == NULL || number == NULL || PyList_Append(group->ids, id) < 0
        || PyList_Append(group->counts, number) < 0
        || PyList_SetSlice(group->changes, end, end, changes) < 0;
    Py_XDECREF(id);
    Py_XDECREF(number);
    Py_DECREF(changes);
    group->bytes += length;
    group->printable &= names->printable;
    return failed ? -1 : 1;
}

PyDoc_STRVAR(grouped_doc, "grouped(envelope, max_requests, max_bytes): see writes.py");
static PyObject *grouped(PyObject *self, PyObject *args)
{
    Py_buffer buffer;
    Py_ssize_t max[2];
    if (!PyArg_ParseTuple(args, "y*nn", &buffer, &max[0], &max[1])) return NULL;
    Span in = {buffer.buf, (const uint8_t *)buffer.buf + buffer.len}, request;
    PyObject *items = PyList_New(0), *rest;
    Group group = {0};
    Names names = {0};
    while (items != NULL && in.at < in.end) {
        if (*in.at++ != TAG_ITEM || !read_span(&in, &request)) { Py_SETREF(items, Py_NewRef(Py_None)); break; }
        int added = add_request(request, &group, &names, items, max);
        if (added > 0) continue;
        if (added < 0 || end_group(&group, items) < 0) { Py_CLEAR(items); break; }
        rest = PyBytes_FromStringAndSize((const char *)request.at, request.end - request.at);
        if (rest == NULL || PyList_Append(items, rest) < 0) Py_CLEAR(items);
        Py_XDECREF(rest);
    }
    if (items != NULL && items != Py_None && end_group(&group, items) < 0) Py_CLEAR(items);
    clear_group(&group);
    Py_XDECREF(names.name);
    PyBuffer_Release(&buffer);
    return items;
}

PyDoc_STRVAR(ends_doc, "ends(message, tag, most, part_items, part_bytes): see writes.py");
static PyObject *ends(PyObject *self, PyObject *args)
{
    Py_buffer buffer;
    unsigned char tag;
    Py_ssize_t most, part_items, part_bytes, count = 0, since = 0;
    if (!PyArg_ParseTuple(args, "y*bnnn", &buffer, &tag, &most, &part_items, &part_bytes)) return NULL;
    Span in = {buffer.buf, (const uint8_t *)buffer.buf + buffer.len}, item;
    const uint8_t *begin = in.at;
    PyObject *cuts = PyList_New(0), *cut;
    while (cuts != NULL && in.at < in.end) {
        if (*in.at++ != tag || count++ >= most || !read_span(&in, &item)) {
            Py_SETREF(cuts, Py_NewRef(Py_None));
            break;
        }
        if (++since < part_items && in.at - begin < part_bytes && in.at < in.end) continue;
        cut = PyLong_FromSsize_t(in.at - (const uint8_t *)buffer.buf);
        if (cut == NULL || PyList_Append(cuts, cut) < 0) Py_CLEAR(cuts);
        Py_XDECREF(cut);
        since = 0;
        begin = in.at;
    }
    PyBuffer_Release(&buffer);
    return cuts;
}

/* --- writing ------------------------------------------------------------------------------- */

static int varint_size(uint64_t value)
{
    int size = 1;
    while (value > 0x7f) { value >>= 7; size++; }
    return size;
}

static uint8_t *put_varint(uint8_t *out, uint64_t value)
{
    while (value > 0x7f) { *out++ = (uint8_t)(value | 0x80); value >>= 7; }
    *out++ = (uint8_t)value;
    return out;
}

static uint8_t *put_bytes(uint8_t *out, const char *data, Py_ssize_t size)
{
    memcpy(out, data, size);
    return out + size;
}

typedef struct { long type; const char *text[3]; Py_ssize_t size[3]; Py_ssize_t body; } Change;

static int read_change(PyObject *tuple, Change *change)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 4) {
        PyErr_SetString(PyExc_TypeError, "a change is (type, name, key, value)");
        return -1;
    }
    change->type = PyLong_AsLong(PyTuple_GET_ITEM(tuple, 0));
    if (change->type == -1 && PyErr_Occurred()) return -1;
    change->body = change->type ? 1 + varint_size((uint64_t)change->type) : 0;
    for (int i = 0; i < 3; i++) {
        change->text[i] = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(tuple, i + 1), &change->size[i]);
        if (change->text[i] == NULL) return -1;
        if (change->size[i] || i == 2)
            change->body += 1 + varint_size(change->size[i]) + change->size[i];
    }
    return 0;
}

PyDoc_STRVAR(run_doc, "run(changes, begin, max_value_chars, max_name_chars): see writes.py");
static PyObject *run(PyObject *self, PyObject *args)
{
    PyObject *changes;
    Py_ssize_t begin, max_value, max_name, at;
    if (!PyArg_ParseTuple(args, "O!nnn", &PyList_Type, &changes, &begin, &max_value, &max_name)) return NULL;
    PyObject *const *first = NULL;
    for (at = begin; at >= 0 && at < PyList_GET_SIZE(changes); at++) {
        PyObject *tuple = PyList_GET_ITEM(changes, at);
        if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 4) break;
        PyObject *const *change = &PyTuple_GET_ITEM(tuple, 0);
        if (first == NULL) first = change;
        if (!PyUnicode_Check(change[1]) || !PyUnicode_Check(change[3])) break;
        Py_ssize_t name = PyUnicode_GET_LENGTH(change[1]);
        int same_type = PyObject_RichCompareBool(change[0], first[0], Py_EQ);
        int same_key = PyObject_RichCompareBool(change[2], first[2], Py_EQ);
        if (same_type < 0 || same_key < 0) return NULL;
        if (!same_type || !same_key || !name || name > max_name
            || PyUnicode_GET_LENGTH(change[3]) > max_value) break;
    }
    return PyLong_FromSsize_t(at);
}

PyDoc_STRVAR(encoded_doc, "encoded(changes, begin, end): see records.py");
static PyObject *encoded(PyObject *self, PyObject *args)
{
    PyObject *changes;
    Py_ssize_t begin, end, total = 0;
    Change change;
    if (!PyArg_ParseTuple(args, "O!nn", &PyList_Type, &changes, &begin, &end)) return NULL;
    if (begin < 0 || end > PyList_GET_SIZE(changes)) {
        PyErr_SetString(PyExc_IndexError, "no such changes");
        return NULL;
    }
    for (Py_ssize_t i = begin; i < end; i++) {
        if (read_change(PyList_GET_ITEM(changes, i), &change) < 0) return NULL;
        total += RECORD_OVERHEAD + change.body;
    }
    PyObject *result = PyBytes_FromStringAndSize(NULL, total);
    if (result == NULL) return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(result);
    for (Py_ssize_t i = begin; i < end; i++) {
        if (read_change(PyList_GET_ITEM(changes, i), &change) < 0) { Py_DECREF(result); return NULL; }
        uint32_t body = (uint32_t)change.body;
        const uint8_t head[RECORD_OVERHEAD] = {0, RECORD_TYPE_CONFIG, 0, 0,
            (uint8_t)(body >> 24), (uint8_t)(body >> 16), (uint8_t)(body >> 8), (uint8_t)body};
        out = put_bytes(out, (const char *)head, RECORD_OVERHEAD);
        if (change.type) { *out++ = 0x08; out = put_varint(out, (uint64_t)change.type); }
        for (int part = 0; part < 3; part++) {
            if (!change.size[part] && part != 2) continue;
            *out++ = (uint8_t)(0x12 + 8 * part);
            out = put_varint(out, change.size[part]);
            out = put_bytes(out, change.text[part], change.size[part]);
        }
    }
    return result;
}

/* Writes a field of bytes, unless it is empty. */
static Py_ssize_t field_size(Py_ssize_t length) { return length ? 1 + varint_size(length) + length : 0; }

static uint8_t *put_field(uint8_t *out, uint8_t tag, const char *data, Py_ssize_t length)
{
    if (!length) return out;
    *out++ = tag;
    return put_bytes(put_varint(out, length), data, length);
}

static Py_ssize_t resource_size(const Change *change, Py_ssize_t *config)
{
    *config = field_size(change->size[1]) + field_size(change->size[2]);
    return (change->type ? 1 + varint_size(change->type) : 0) + field_size(change->size[0])
        + 1 + varint_size(*config) + *config;
}

PyDoc_STRVAR(request_doc, "request(changes, id, cluster_id, timeout_ms, acks, principal): see writes.py");
static PyObject *request(PyObject *self, PyObject *args)
{
    PyObject *changes;
    unsigned long long id;
    const char *cluster_id, *principal;
    Py_ssize_t cluster_id_size, principal_size, body = 0;
    unsigned int timeout_ms;
    unsigned char acks;
    Change change;
    if (!PyArg_ParseTuple(args, "O!Ks#Ibs#", &PyList_Type, &changes, &id, &cluster_id, &cluster_id_size,
                          &timeout_ms, &acks, &principal, &principal_size)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(changes), client = field_size(principal_size);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (read_change(PyList_GET_ITEM(changes, i), &change) < 0) return NULL;
        Py_ssize_t config, resource = resource_size(&change, &config);
        body += 1 + varint_size(resource) + resource;
    }
    Py_ssize_t total = (id ? 1 + varint_size(id) : 0) + field_size(cluster_id_size)
        + (timeout_ms ? 1 + varint_size(timeout_ms) : 0) + (acks ? 2 : 0) + field_size(client)
        + 2 + varint_size(body) + body;
    PyObject *result = PyBytes_FromStringAndSize(NULL, total);
    if (result == NULL) return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(result);
    if (id) { *out++ = 0x08; out = put_varint(out, id); }
    out = put_field(out, 0x12, cluster_id, cluster_id_size);
    if (timeout_ms) { *out++ = 0x18; out = put_varint(out, timeout_ms); }
    if (acks) { *out++ = 0x20; *out++ = acks; }
    if (client) {
        *out++ = 0x2a;
        out = put_field(put_varint(out, client), 0x0a, principal, principal_size);
    }
    out = put_varint(put_bytes(out, "\x82\x01", 2), body);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (read_change(PyList_GET_ITEM(changes, i), &change) < 0) { Py_DECREF(result); return NULL; }
        Py_ssize_t config, resource = resource_size(&change, &config);
        *out++ = 0x0a;
        out = put_varint(out, resource);
        if (change.type) { *out++ = 0x08; out = put_varint(out, change.type); }
        out = put_field(out, 0x12, change.text[0], change.size[0]);
        *out++ = 0x1a;
        out = put_varint(out, config);
        out = put_field(out, 0x0a, change.text[1], change.size[1]);
        out = put_field(out, 0x1a, change.text[2], change.size[2]);
    }
    return result;
}

static uint8_t *put_packed(uint8_t *out, const char *data, Py_ssize_t size)
{
    if (size < 32) *out++ = (uint8_t)(0xa0 | size);
    else if (size < 1 << 8) { *out++ = 0xd9; *out++ = (uint8_t)size; }
    else { *out++ = 0xda; *out++ = (uint8_t)(size >> 8); *out++ = (uint8_t)size; }
    return put_bytes(out, data, size);
}

/* Returns the canonical bytes of a config, or None if it is too long or has an unexpected type. */
static PyObject *entity_of(const Change *change)
{
    Py_ssize_t total = change->size[0] + change->size[1] + change->size[2];
    if (change->type < 0 || change->type > 0x7f || total > 0xffff) Py_RETURN_NONE;
    uint8_t small[1024], *buffer = total + 32 <= (Py_ssize_t)sizeof small ? small : PyMem_Malloc(total + 32);
    if (buffer == NULL) return PyErr_NoMemory();
    uint8_t *out = put_bytes(buffer, "\x95\xa6" "config", 8);
    *out++ = (uint8_t)change->type;
    for (int i = 0; i < 3; i++) out = put_packed(out, change->text[i], change->size[i]);
    PyObject *result = PyBytes_FromStringAndSize((const char *)buffer, out - buffer);
    if (buffer != small) PyMem_Free(buffer);
    return result;
}

PyDoc_STRVAR(entity_doc, "entity(change): see records.py; None for what is too long or of an odd type");
static PyObject *entity(PyObject *self, PyObject *tuple)
{
    Change change;
    if (read_change(tuple, &change) < 0) return NULL;
    return entity_of(&change);
}

/* --- the fold ------------------------------------------------------------------------------ */

typedef struct { unsigned __int128 hash; Py_ssize_t bytes; } Sum;

/* Adds (sign 1) or subtracts (-1) an entity's contribution to the state hash and the size. */
static int account(const Change *change, PyObject *tuple, PyObject *digest, PyObject *other, int sign, Sum *sum)
{
    PyObject *content = entity_of(change);
    if (content == Py_None) Py_SETREF(content, PyObject_CallOneArg(other, tuple));
    PyObject *hash = content == NULL ? NULL : PyObject_CallOneArg(digest, content);
    if (hash == NULL || !PyBytes_Check(hash) || PyBytes_GET_SIZE(hash) != 16 || !PyBytes_Check(content)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a digest is 16 bytes");
        Py_XDECREF(hash);
        Py_XDECREF(content);
        return -1;
    }
    unsigned __int128 number = 0;
    for (int i = 0; i < 16; i++) number = number << 8 | (uint8_t)PyBytes_AS_STRING(hash)[i];
    sum->hash += sign > 0 ? number : -number;
    sum->bytes += sign * PyBytes_GET_SIZE(content);
    Py_DECREF(hash);
    Py_DECREF(content);
    return 0;
}

/* Returns a new dict of a resource's keys with this one changed, or NULL for an exception. */
static PyObject *changed_values(PyObject *before, PyObject *name, PyObject *value)
{
    int alone = before == NULL
        || (PyDict_GET_SIZE(before) == 1 && PyDict_GetItemWithError(before, name) != NULL);
    if (PyErr_Occurred()) return NULL;
    PyObject *after = alone ? PyDict_New() : PyDict_Copy(before);
    int failed = after == NULL
        || (value != Py_None ? PyDict_SetItem(after, name, value) : alone ? 0 : PyDict_DelItem(after, name));
    if (failed) Py_CLEAR(after);
    return after;
}

/* Returns (type, name) of a change. */
static PyObject *resource_of(PyObject *tuple)
{
    if (PyTuple_Check(tuple) && PyTuple_GET_SIZE(tuple) == 4)
        return beyond_collection(PyTuple_Pack(2, PyTuple_GET_ITEM(tuple, 0), PyTuple_GET_ITEM(tuple, 1)));
    PyErr_SetString(PyExc_TypeError, "a change is (type, name, key, value)");
    return NULL;
}

typedef struct { PyObject *configs, *undo, *digest, *other; } Into;

static int fold_one(PyObject *tuple, PyObject *resource, const Into *into, Sum *sum)
{
    PyObject *configs = into->configs, *undo = into->undo, *digest = into->digest, *other = into->other;
    PyObject *name = PyTuple_GET_ITEM(tuple, 2), *value = PyTuple_GET_ITEM(tuple, 3), *past = NULL;
    int failed = -1;
    Change change;
    PyObject *after = NULL, *before = Py_XNewRef(PyDict_GetItemWithError(configs, resource));
    PyObject *old = before == NULL ? NULL : PyDict_GetItemWithError(before, name);
    if (PyErr_Occurred()) goto done;
    if (old != NULL) {
        past = PyTuple_Pack(4, PyTuple_GET_ITEM(tuple, 0), PyTuple_GET_ITEM(tuple, 1), name, old);
        if (past == NULL || read_change(past, &change) < 0
            || account(&change, past, digest, other, -1, sum) < 0) goto done;
    }
    if (value != Py_None
        && (read_change(tuple, &change) < 0 || account(&change, tuple, digest, other, 1, sum) < 0)) goto done;
    if (value != Py_None || old != NULL) {
        if (PyDict_SetDefault(undo, resource, before == NULL ? Py_None : before) == NULL
            || (after = changed_values(before, name, value)) == NULL
            || (PyDict_GET_SIZE(after) ? PyDict_SetItem(configs, resource, after)
                                       : PyDict_DelItem(configs, resource)) < 0) goto done;
    }
    failed = 0;
done:
    Py_XDECREF(before);
    Py_XDECREF(after);
    Py_XDECREF(past);
    return failed;
}

static int fold_block(PyObject **tuples, Py_ssize_t count, const Into *into, Sum *sum)
{
    PyObject *resources[BLOCK];
    Py_ssize_t known = 0, done = 0;
    while (known < count && (resources[known] = resource_of(tuples[known])) != NULL) known++;
    if (known == count && warm(resources, count, into->configs) == 0)
        while (done < count && fold_one(tuples[done], resources[done], into, sum) == 0) done++;
    for (Py_ssize_t i = 0; i < known; i++) Py_DECREF(resources[i]);
    return done == count ? 0 : -1;
}

PyDoc_STRVAR(fold_doc, "fold(changes, configs, undo, digest, entity): see records.py");
static PyObject *fold(PyObject *self, PyObject *args)
{
    PyObject *changes;
    Into into;
    Sum sum = {0};
    if (!PyArg_ParseTuple(args, "OO!O!OO", &changes, &PyDict_Type, &into.configs, &PyDict_Type, &into.undo,
                          &into.digest, &into.other)) return NULL;
    PyObject *all = PySequence_Fast(changes, "changes are a sequence");
    if (all == NULL) return NULL;
    Py_ssize_t total = PySequence_Fast_GET_SIZE(all);
    for (Py_ssize_t i = 0; i < total; i += BLOCK) {
        Py_ssize_t count = total - i < BLOCK ? total - i : BLOCK;
        if (fold_block(PySequence_Fast_ITEMS(all) + i, count, &into, &sum) < 0) {
            Py_DECREF(all);
            return NULL;
        }
    }
    Py_DECREF(all);
    uint8_t hash[16];
    for (int i = 0; i < 16; i++) hash[i] = (uint8_t)(sum.hash >> 8 * (15 - i));
    return Py_BuildValue("(y#n)", hash, (Py_ssize_t)16, sum.bytes);
}

PyDoc_STRVAR(decoded_doc, "decoded(chunk, position, end, count): see records.py");
static PyObject *decoded(PyObject *self, PyObject *args)
{
    Py_buffer buffer;
    Py_ssize_t position, end, count;
    if (!PyArg_ParseTuple(args, "y*nnn", &buffer, &position, &end, &count)) return NULL;
    PyObject *changes = NULL, *change;
    Names names = {0};
    if (position < 0 || end > buffer.len || position > end || count < 0
        || count > (end - position) / RECORD_OVERHEAD) goto other;
    const uint8_t *at = (const uint8_t *)buffer.buf + position, *stop = (const uint8_t *)buffer.buf + end;
    if ((changes = PyList_New(count)) == NULL) goto done;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (stop - at < RECORD_OVERHEAD || at[0] || at[1] != RECORD_TYPE_CONFIG || at[2]) goto other;
        uint32_t length = (uint32_t)at[4] << 24 | (uint32_t)at[5] << 16 | (uint32_t)at[6] << 8 | at[7];
        at += RECORD_OVERHEAD;
        if (length > (size_t)(stop - at)) goto other;
        if ((change = read_record((Span){at, at + length}, &names)) == NULL) {
            if (PyErr_Occurred()) { Py_CLEAR(changes); goto done; }
            goto other;
        }
        PyList_SET_ITEM(changes, i, change);
        at += length;
    }
    if (at == stop) goto done;
other:
    Py_XDECREF(changes);
    changes = Py_NewRef(Py_None);
done:
    Py_XDECREF(names.name);
    PyBuffer_Release(&buffer);
    return changes;
}

PyDoc_STRVAR(replies_doc, "replies(ids, counts, offset, head, token_head, reached): see writes.py");
static PyObject *replies(PyObject *self, PyObject *args)
{
    PyObject *ids, *counts;
    Py_buffer head, token_head;
    unsigned long long offset;
    unsigned char reached;
    if (!PyArg_ParseTuple(args, "O!O!Ky*y*b", &PyList_Type, &ids, &PyList_Type, &counts, &offset, &head,
                          &token_head, &reached)) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(ids), most = 64 + head.len + token_head.len;
    PyObject *result = NULL;
    uint8_t *buffer = PyMem_Malloc(count * most + 1), *out = buffer;
    if (buffer == NULL) { PyErr_NoMemory(); goto done; }
    if (PyList_GET_SIZE(counts) < count) { PyErr_SetString(PyExc_ValueError, "too few counts"); goto done; }
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t id = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(ids, i));
        Py_ssize_t records = PyLong_AsSsize_t(PyList_GET_ITEM(counts, i));
        if (PyErr_Occurred()) goto done;
        offset += records;
        uint64_t last = offset - 1;
        Py_ssize_t token = token_head.len + (last ? 1 + varint_size(last) : 0);
        Py_ssize_t write = 1 + varint_size(token) + token + (reached ? 2 : 0);
        Py_ssize_t body = (id ? 1 + varint_size(id) : 0) + head.len + 1 + varint_size(write) + write + 3;
        *out++ = TAG_ITEM;
        out = put_varint(out, body);
        if (id) { *out++ = 0x08; out = put_varint(out, id); }
        out = put_bytes(out, head.buf, head.len);
        *out++ = 0x2a;
        out = put_varint(out, write);
        *out++ = 0x0a;
        out = put_varint(out, token);
        out = put_bytes(out, token_head.buf, token_head.len);
        if (last) { *out++ = 0x18; out = put_varint(out, last); }
        if (reached) { *out++ = 0x10; *out++ = reached; }
        out = put_bytes(out, "\x82\x01\x00", 3);
    }
    result = PyBytes_FromStringAndSize((const char *)buffer, out - buffer);
done:
    PyMem_Free(buffer);
    PyBuffer_Release(&head);
    PyBuffer_Release(&token_head);
    return result;
}

static PyMethodDef methods[] = {
    {"grouped", grouped, METH_VARARGS, grouped_doc},
    {"run", run, METH_VARARGS, run_doc},
    {"ends", ends, METH_VARARGS, ends_doc},
    {"request", request, METH_VARARGS, request_doc},
    {"entity", entity, METH_O, entity_doc},
    {"fold", fold, METH_VARARGS, fold_doc},
    {"encoded", encoded, METH_VARARGS, encoded_doc},
    {"decoded", decoded, METH_VARARGS, decoded_doc},
    {"replies", replies, METH_VARARGS, replies_doc},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_size = -1, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddIntConstant(made, "VERSION", 6) < 0) Py_CLEAR(made);
    return made;
}
