"""Makes each row of docs/proposals.md false, one at a time, and says whether its tests notice:
``scripts/rows``.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from row_runs import as_json, passes_unedited, prepare, run_edit
from rows import ALL, EDITS, named_rows


def main() -> int:
    """Exit code 0: every row has its edit, and each was noticed."""
    parser = argparse.ArgumentParser(prog="scripts/rows", description=__doc__)
    parser.add_argument(
        "rows",
        nargs="*",
        help="rows to run, as HB-3; a name alone (HB) means all of its table; default: all",
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (1)")
    parser.add_argument(
        "--unchecked", action="store_true", help="do not first run all tests without an edit"
    )
    options = parser.parse_args()
    wanted = [
        one
        for one in EDITS
        if not options.rows or {one.row, one.row.partition("-")[0]} & set(options.rows)
    ]
    if not wanted:
        parser.error("no such rows")
    prepare()
    without = sorted(set(named_rows()) - {one.row for one in ALL})
    if without:
        print(f"rows that have neither an edit nor a reason: {', '.join(without)}", file=sys.stderr)
    if not options.unchecked:
        wrong = passes_unedited(sorted({test for one in wanted for test in one.tests}))
        if wrong:
            print(f"the tests do not pass without an edit: {wrong}", file=sys.stderr)
            return 1
    verdicts: Counter[str] = Counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(run_edit, wanted):
            verdicts[outcome.verdict] += 1
            print(as_json(outcome), flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))
    return 0 if set(verdicts) == {"killed"} and not (without and not options.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
