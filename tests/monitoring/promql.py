"""The part of PromQL that the rules and dashboards use, over samples in memory. The parser is
promql-parser's; the semantics follow Prometheus' documentation, so that the gate needs no
Prometheus. Nightly ``promtool`` evaluates the same samples and must raise the same alerts.
"""

import itertools
import math
import operator
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import promql_parser as ast

LOOKBACK_S = 300.0
STALE = object()
"""The marker that Prometheus writes into a series that its target no longer exposes."""

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Samples = tuple[list[float], list[Any]]
"""Times, and values."""
NAME = "__name__"


def labels(name: str = "", **others: str) -> Labels:
    return frozenset({**others, **({NAME: name} if name else {})}.items())


class Storage:
    """Samples by series, in order of time."""

    def __init__(self) -> None:
        self.series: dict[Labels, Samples] = {}
        self._by_name: dict[str, list[Labels]] = defaultdict(list)

    def add(self, key: Labels, at: float, value: Any) -> None:
        if key not in self.series:
            self.series[key] = ([], [])
            self._by_name[dict(key)[NAME]].append(key)
        times, values = self.series[key]
        assert not times or times[-1] < at, (key, times[-1], at)
        times.append(at)
        values.append(value)

    def matching(self, selector: ast.VectorSelector) -> Iterable[tuple[Labels, Samples]]:
        tests = [_matcher(one) for one in selector.matchers.matchers]
        for key in self._by_name.get(selector.name or "", ()):
            found = dict(key)
            if all(test(found) for test in tests):
                yield key, self.series[key]


def _matcher(one: Any) -> Callable[[dict[str, str]], bool]:
    if one.op == ast.MatchOp.Equal:
        return lambda found: found.get(one.name, "") == one.value
    if one.op == ast.MatchOp.NotEqual:
        return lambda found: found.get(one.name, "") != one.value
    pattern = re.compile(one.value)
    if one.op == ast.MatchOp.Re:
        return lambda found: pattern.fullmatch(found.get(one.name, "")) is not None
    return lambda found: pattern.fullmatch(found.get(one.name, "")) is None


def without_name(key: Labels) -> Labels:
    return frozenset(pair for pair in key if pair[0] != NAME)


def _token(expression: Any) -> str:
    found = re.search(r"op: TokenType\(\s*(\d+)", repr(expression))
    assert found is not None
    return found[1]


_BINARY = {
    _token(ast.parse(f"a {sign} b")): sign
    for sign in (">", "<", ">=", "<=", "==", "!=", "+", "-", "*", "/", "and", "or", "unless")
}
_AGGREGATE = {
    _token(ast.parse(f"{name}(a)")): name for name in ("sum", "max", "min", "count", "group", "avg")
}
_COMPARE = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_FOLD: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "count": len,
    "group": lambda _: 1.0,
    "avg": lambda values: sum(values) / len(values),
}


def _divide(one: float, other: float) -> float:
    if other:
        return one / other
    return math.nan if not one else math.copysign(math.inf, one)


_COMPUTE: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
}


class Evaluation:
    """The evaluation of expressions at one moment."""

    def __init__(self, storage: Storage, at: float) -> None:
        self._storage, self._at = storage, at

    def vector(self, expression: Any) -> Vector:
        found = self.value(expression)
        assert isinstance(found, dict), "an instant vector"
        return found

    def value(self, node: Any) -> Vector | float:
        match node:
            case ast.NumberLiteral():
                return float(node.val)
            case ast.ParenExpr():
                return self.value(node.expr)
            case ast.VectorSelector():
                return self._instant(node)
            case ast.Call():
                return self._call(node)
            case ast.AggregateExpr():
                return self._aggregate(node)
            case ast.BinaryExpr():
                return self._binary(node)
        raise NotImplementedError(type(node).__name__)

    def _instant(self, node: ast.VectorSelector) -> Vector:
        found = {}
        for key, (times, values) in self._storage.matching(node):
            index = bisect_right(times, self._at) - 1
            if index >= 0 and times[index] > self._at - LOOKBACK_S and values[index] is not STALE:
                found[key] = values[index]
        return found

    def _window(self, node: ast.MatrixSelector) -> dict[Labels, list[tuple[float, float]]]:
        begin = self._at - node.range.total_seconds()
        found = {}
        for key, (times, values) in self._storage.matching(node.vector_selector):
            first, last = bisect_right(times, begin), bisect_right(times, self._at)
            points = [(times[i], values[i]) for i in range(first, last) if values[i] is not STALE]
            if points:
                found[key] = points
        return found

    def _call(self, node: ast.Call) -> Vector:
        name, arguments = node.func.name, node.args
        if name == "histogram_quantile":
            return _quantiles(arguments[0].val, self.vector(arguments[1]))
        if name == "clamp_min":
            low = arguments[1].val
            return {without_name(k): max(v, low) for k, v in self.vector(arguments[0]).items()}
        window, range_s = self._window(arguments[0]), arguments[0].range.total_seconds()
        results = {}
        for key, points in window.items():
            result = self._over_time(name, points, range_s, arguments)
            if result is not None:
                kept = key if name == "last_over_time" else without_name(key)
                assert kept not in results
                results[kept] = result
        return results

    def _over_time(
        self, name: str, points: list[tuple[float, float]], range_s: float, arguments: Any
    ) -> float | None:
        values = [value for _, value in points]
        match name:
            case "last_over_time":
                return values[-1]
            case "min_over_time":
                return min(values)
            case "max_over_time":
                return max(values)
            case "changes":
                pairs = itertools.pairwise(values)
                return float(sum(one != other for one, other in pairs))
            case "rate" | "increase":
                grown = _increase(points, self._at - range_s, self._at)
                return grown / range_s if name == "rate" and grown is not None else grown
            case "predict_linear":
                return _predicted(points, self._at, arguments[1].val)
        raise NotImplementedError(name)

    def _aggregate(self, node: ast.AggregateExpr) -> Vector:
        groups: dict[Labels, list[float]] = defaultdict(list)
        for key, value in self.vector(node.expr).items():
            groups[_kept(key, node.modifier)].append(value)
        fold = _FOLD[_AGGREGATE[_token(node)]]
        return {key: float(fold(values)) for key, values in groups.items()}

    def _binary(self, node: ast.BinaryExpr) -> Vector | float:
        sign = _BINARY[_token(node)]
        left, right = self.value(node.lhs), self.value(node.rhs)
        if isinstance(left, dict) and isinstance(right, dict):
            if sign in {"and", "or", "unless"}:
                return _set_operation(sign, left, right, node.modifier)
            return _matched(sign, left, right, node.modifier)
        if isinstance(left, dict):
            assert isinstance(right, float)
            return _with_scalar(sign, left, lambda value: (value, right))
        if isinstance(right, dict):
            return _with_scalar(sign, right, lambda value: (left, value))
        return _COMPUTE[sign](left, right)


def _with_scalar(
    sign: str, vector: Vector, operands: Callable[[float], tuple[float, float]]
) -> Vector:
    if sign in _COMPARE:
        return {k: v for k, v in vector.items() if _COMPARE[sign](*operands(v))}
    return {without_name(k): _COMPUTE[sign](*operands(v)) for k, v in vector.items()}


def _kept(key: Labels, modifier: Any) -> Labels:
    if modifier is None:
        return frozenset()
    if modifier.type == ast.AggModifierType.By:
        return frozenset(pair for pair in key if pair[0] in modifier.labels)
    return frozenset(pair for pair in key if pair[0] not in {*modifier.labels, NAME})


def _signature(key: Labels, modifier: Any) -> Labels:
    matching = modifier.matching if modifier is not None else None
    if matching is None:
        return without_name(key)
    if matching.type == ast.LabelModifierType.Include:
        return frozenset(pair for pair in key if pair[0] in matching.labels)
    return frozenset(pair for pair in key if pair[0] not in {*matching.labels, NAME})


def _set_operation(sign: str, left: Vector, right: Vector, modifier: Any) -> Vector:
    if sign == "or":
        there = {_signature(key, modifier) for key in left}
        return left | {k: v for k, v in right.items() if _signature(k, modifier) not in there}
    there = {_signature(key, modifier) for key in right}
    wanted = sign == "and"
    return {k: v for k, v in left.items() if (_signature(k, modifier) in there) is wanted}


def _matched(sign: str, left: Vector, right: Vector, modifier: Any) -> Vector:
    grouped = modifier is not None and modifier.card == ast.VectorMatchCardinality.ManyToOne
    assert grouped or modifier is None or modifier.card == ast.VectorMatchCardinality.OneToOne
    one_side: dict[Labels, tuple[Labels, float]] = {}
    for key, value in right.items():
        signature = _signature(key, modifier)
        assert signature not in one_side, f"many-to-many matching: {sorted(signature)}"
        one_side[signature] = (key, value)
    found: Vector = {}
    for key, value in left.items():
        other = one_side.get(_signature(key, modifier))
        if other is None or (sign in _COMPARE and not _COMPARE[sign](value, other[1])):
            continue
        if grouped:
            result = dict(key if sign in _COMPARE else without_name(key))
            for name in modifier.group_labels or ():
                result.pop(name, None)
                if (given := dict(other[0]).get(name)) is not None:
                    result[name] = given
            made = frozenset(result.items())
        else:
            made = _signature(key, modifier)
        assert made not in found, f"many matches for {sorted(made)}"
        found[made] = value if sign in _COMPARE else _COMPUTE[sign](value, other[1])
    return found


def _increase(points: list[tuple[float, float]], begin: float, end: float) -> float | None:
    """Return the increase extrapolated as in Prometheus: to the window's borders if they are near,
    and never below zero.
    """
    if len(points) < 2:
        return None
    (first_at, first), (last_at, last) = points[0], points[-1]
    grown, before = last - first, first
    for _, value in points[1:]:
        if value < before:
            grown += before
        before = value
    sampled = last_at - first_at
    average = sampled / (len(points) - 1)
    to_begin, to_end = first_at - begin, end - last_at
    if grown > 0 and first >= 0:
        to_begin = min(to_begin, sampled * (first / grown))
    threshold = average * 1.1
    reached = sampled
    reached += to_begin if to_begin < threshold else average / 2
    reached += to_end if to_end < threshold else average / 2
    return grown * reached / sampled


def _predicted(points: list[tuple[float, float]], at: float, ahead_s: float) -> float | None:
    if len(points) < 2:
        return None
    n = len(points)
    xs, ys = [t - at for t, _ in points], [v for _, v in points]
    mean_x, mean_y = sum(xs) / n, sum(ys) / n
    variance = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / variance
    return mean_y - slope * mean_x + slope * ahead_s


def _quantiles(q: float, vector: Vector) -> Vector:
    by_rest: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for key, value in vector.items():
        rest = frozenset(pair for pair in key if pair[0] not in {"le", NAME})
        by_rest[rest].append((float(dict(key)["le"]), value))
    return {rest: _quantile(q, sorted(buckets)) for rest, buckets in by_rest.items()}


def _quantile(q: float, buckets: list[tuple[float, float]]) -> float:
    total = buckets[-1][1]
    if len(buckets) < 2 or not total:
        return math.nan
    rank = q * total
    index = next(i for i, (_, count) in enumerate(buckets) if count >= rank)
    if index == len(buckets) - 1:
        return buckets[-2][0]
    low, below = buckets[index - 1] if index else (0.0, 0.0)
    high, count = buckets[index]
    return low + (high - low) * (rank - below) / (count - below)
