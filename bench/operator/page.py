"""The tables of docs/performance.md, from the results of the suites: everything between the two markers."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.operator.lab import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

PAGE: Final = ROOT / "docs" / "performance.md"
BEGIN: Final = "<!-- results: begin (python -m bench.operator page) -->"
END: Final = "<!-- results: end -->"
TITLES: Final = {"plimsoll": "Plimsoll", "floor": "Go floor", "stock": "stock kopf"}
MIB: Final = 1024 * 1024

Results = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """One goal: what was asked, what was found (None: not measured), and whether that is within it."""

    asked: str
    found: str | None
    met: bool


def write(folder: Path) -> None:
    """Put the results of a folder between the page's markers."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n\n{render(read(folder))}\n{END}{tail}")


def read(folder: Path) -> Results:
    """Every suite's JSON by the suite's name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def render(results: Results) -> str:
    """All tables of which there are results."""
    parts = [_goals(results)]
    for name, part in PARTS.items():
        if name in results:
            kept = results[name]
            parts.append(f"{part(kept['result'])}\n\n{_where(kept)}")
    return "\n\n".join(parts) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def middle(found: Iterable[float], digits: int = 1) -> str:
    """The median, with the smallest and largest where they differ."""
    values = sorted(found)
    if not values:
        return "-"
    text = f"{statistics.median(values):.{digits}f}"
    low, high = f"{values[0]:.{digits}f}", f"{values[-1]:.{digits}f}"
    return text if low == high else f"{text} ({low} to {high})"


def by_who(found: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Results of each operator, in the order of the titles."""
    return {who: mine for who in TITLES if (mine := [one for one in found if one["who"] == who])}


def _where(kept: Mapping[str, Any]) -> str:
    machine = kept["machine"]
    return (
        f"<small>{machine['at']}, commit {machine['commit']}, {machine['cores']} cores ({machine['cpu']}), "
        f"Linux {machine['kernel']}, Python {machine['python']}; load before {machine['loadBefore']}; "
        f"took {kept['seconds']:.0f} s</small>"
    )


def _burst(found: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for who, mine in by_who(found).items():
        rows.append([
            TITLES[who],
            len(mine),
            middle((r["load"]["childPerSecond"] for r in mine), 0),
            middle(r["n"] / r["load"]["settledSeconds"] for r in mine if r["load"]["settledSeconds"]),
            middle((r["load"]["childLagMs"]["p50"] / 1000 for r in mine), 2),
            middle((r["load"]["childLagMs"]["p99"] / 1000 for r in mine), 2),
            *(middle((r["cpuMsEach"][k] for r in mine), 2) for k in ("toChildren", "toSettled", "lifecycle")),
            middle(r["controlPlaneCpuSeconds"]["kube-apiserver"] / r["n"] * 1000 for r in mine),
            middle((r["memoryMiB"]["after"]["peak"] for r in mine), 0),
        ])  # fmt: skip
    heads = [
        "operator", "runs", "CR/s to the first child", "CR/s to rolled out", "lag p50 s", "lag p99 s",
        "own CPU ms each, to the children", "to rolled out", "to deleted", "API server's CPU ms each", "peak MiB",
    ]  # fmt: skip
    note = ""
    if (share := ratio(found)) is not None:
        note = f"\n\nPlimsoll / Go floor, by round: {middle(share, 2)} of the servers a second."
    return f"### {found[0]['n']:,} servers at once\n\n{table(heads, rows)}{note}\n\n{_calls(found)}"


def ratio(found: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """Servers a second of Plimsoll over those of the Go operator, round by round."""
    rates = {
        who: [r["load"]["childPerSecond"] for r in mine] for who, mine in by_who(found).items()
    }
    if not {"plimsoll", "floor"} <= rates.keys():
        return None
    return [ours / theirs for ours, theirs in zip(rates["plimsoll"], rates["floor"], strict=False)]


def _calls(found: Sequence[Mapping[str, Any]]) -> str:
    """Requests for each server by verb and resource, of the first round."""
    first = {who: mine[0] for who, mine in by_who(found).items()}
    names = sorted({call for r in first.values() for call in r["callsWithDeletion"]["byCall"]})
    rows: list[list[object]] = [
        [f"`{call}`", *(round(r["callsWithDeletion"]["byCall"].get(call, 0) / r["n"], 2) for r in first.values())]
        for call in names
        if any(r["callsWithDeletion"]["byCall"].get(call, 0) / r["n"] >= 0.01 for r in first.values())
    ]  # fmt: skip
    for key, title in (
        ("writesEach", "**writes** (Events and leases apart)"),
        ("readsEach", "**reads**"),
    ):
        rows.append([title, *(round(r["callsWithDeletion"][key], 2) for r in first.values())])
    rows.append(["etcd revisions, all writers", *(r["etcdRevisionsEach"] for r in first.values())])
    heads = ["requests for each server", *(TITLES[who] for who in first)]
    return table(heads, rows)


def _rate(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [TITLES[r["who"]], r["n"], r["load"]["childLagMs"]["p50"], r["load"]["childLagMs"]["p99"],
         r["load"]["settledLagMs"]["p50"], r["load"]["settledLagMs"]["p99"], r["cpuMsEach"]["toSettled"]]
        for r in found
    ]  # fmt: skip
    heads = [
        "operator", "servers", "to first child p50 ms", "p99 ms", "to rolled out p50 ms", "p99 ms", "own CPU ms each",
    ]  # fmt: skip
    return f"### {found[0]['rate']:.0f} servers a second, open loop\n\n{table(heads, rows)}"


def _stamped(found: Mapping[str, Any]) -> str:
    lag, calls = found["resultToTemplateMs"], found["callsWithDeletion"]
    rows: list[list[object]] = [
        ["a result to the template that carries it, p50 / p99 ms", f"{lag['p50']} / {lag['p99']}"],
        ["writes, Events and leases apart", calls["writesEach"]],
        ["reads", calls["readsEach"]],
        ["Events", calls["eventsEach"]],
        ["etcd revisions of all writers, to serving", found["etcdRevisionsEach"]],
        ["own CPU ms, to deleted", found["cpuMsEach"]["lifecycle"]],
    ]
    rows += [
        [f"`{call}`", round(count / found["n"], 2)]
        for call, count in calls["byCall"].items()
        if count / found["n"] >= 0.01
    ]
    heads = [f"a life from creation to deletion (of {found['n']})", "each"]
    return f"### Sized, stamped, serving, deleted\n\n{table(heads, rows)}"


def _fairness(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [TITLES[r["who"]], r["other"]["childLagMs"]["p50"], r["other"]["childLagMs"]["p99"],
         round(r["burst"]["childPerSecond"])]
        for r in found
    ]  # fmt: skip
    heads = ["operator", "tenant B: to first child p50 ms", "p99 ms", "tenant A: CR/s"]
    title = f"### One server a second of a tenant while another creates {found[0]['n']:,} at once"
    return f"{title}\n\n{table(heads, rows)}"


def _restart(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [TITLES[r["who"]], f"{r['servers']:,}", r["convergeSeconds"], r["calls"]["writes"], r["calls"]["reads"],
         r["cpuSeconds"], r["memoryMiB"]["rss"], r["memoryMiB"]["pss"], r["memoryMiB"]["peak"]]
        for r in found
        if r["what"] == "restart"
    ]  # fmt: skip
    heads = [
        "operator", "servers", "converged after s", "writes", "reads", "own CPU s", "RSS MiB", "PSS MiB", "peak MiB",
    ]  # fmt: skip
    slopes = [
        f"{TITLES[who]} {slope:.1f} kB"
        for who in TITLES
        if (slope := slope_of(found, who)) is not None
    ]
    text = f"Resident memory for each server, from none to the most: {', '.join(slopes)}."
    return f"### Restart and memory\n\n{table(heads, rows)}\n\n{text}"


def slope_of(found: Sequence[Mapping[str, Any]], who: str) -> float | None:
    """Kilobytes (1,000 bytes) of resident memory a server, after restarts with none and with the most."""
    rss = {
        r["servers"]: r["memoryMiB"]["rss"]
        for r in found
        if r["what"] == "restart" and r["who"] == who
    }
    most = max(rss, default=0)
    return (rss[most] - rss[0]) * MIB / 1000 / most if most and 0 in rss else None


def _cold(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [TITLES[r["who"]], f"{r['servers']:,}", r["childSeconds"], r["cpuSeconds"], r["peakMiB"]]
        for r in found
    ]
    heads = [
        "operator",
        "servers without children",
        "start to last child s",
        "own CPU s",
        "peak MiB",
    ]
    return f"### Cold start\n\n{table(heads, rows)}"


def _startup(found: Mapping[str, Any]) -> str:
    rows = [
        [TITLES[who], seconds, found["idleMiB"][who]["rss"], found["idleMiB"][who]["pss"]]
        for who, seconds in found["watchSeconds"].items()
    ]
    budget = found["imports"]
    packages = ", ".join(f"{name} {ms:.0f}" for name, ms in budget["selfMsByPackage"].items())
    return (
        "### Start\n\n"
        + table(
            ["operator", "start to first watch s (median)", "idle RSS MiB", "idle PSS MiB"], rows
        )
        + f"\n\nPlimsoll's imports: {budget['seconds']} s, {budget['modules']} modules, {budget['rssMiB']} MiB. "
        f"Own milliseconds by package (`-X importtime`, which slows): {packages}."
    )


def _images(found: Mapping[str, Mapping[str, int]]) -> str:
    rows = [
        [name, round(size["bytes"] / 1e6, 1), round(size["gzipBytes"] / 1e6, 1)]
        for name, size in found.items()
    ]
    return "### Images\n\n" + table(["image", "MB", "MB compressed (gzip)"], rows)


def _sizer(found: Mapping[str, Any]) -> str:
    text = json.dumps(found, indent=1)
    return f"### The sizer (`python -m bench.sizer`)\n\n```json\n{text}\n```"


def _goals(results: Results) -> str:
    rows = [
        [g.asked, g.found or "not measured", "met" if g.met else "**not met**"]
        for g in goals(results)
    ]
    return "### Goals\n\n" + table(["goal", "measured", ""], rows)


def goals(results: Results) -> list[Goal]:
    """The goals, with what was found."""
    return [goal for make in (_flow_goals, _rest_goals, _life_goals) for goal in make(results)]


def _of(results: Results, suite: str) -> Any:  # noqa: ANN401
    return results[suite]["result"] if suite in results else None


def _goal(asked: str, value: float | None, holds: Callable[[float], bool], unit: str) -> Goal:
    text = None if value is None else f"{value:.4g} {unit}".strip()
    return Goal(asked, text, value is not None and holds(value))


def _flow_goals(results: Results) -> list[Goal]:
    burst, rate = _of(results, "burst") or [], _of(results, "rate") or []
    ours = [r for r in burst if r["who"] == "plimsoll"]
    share = ratio(burst)
    cpu = statistics.median(r["cpuMsEach"]["toSettled"] for r in ours) if ours else None
    lag: dict[str, float] = next(
        (r["load"]["childLagMs"] for r in rate if r["who"] == "plimsoll"), {}
    )
    return [
        _goal(
            "burst of 1,000: at least 0.8 of the Go operator's servers a second",
            statistics.median(share) if share else None, lambda x: x >= 0.8, "",
        ),
        _goal("burst of 1,000: at most 6 ms of own CPU each", cpu, lambda x: x <= 6, "ms"),
        _goal("10 a second: p50 to the first child at most 25 ms", lag.get("p50"), lambda x: x <= 25, "ms"),
        _goal("10 a second: p99 to the first child at most 80 ms", lag.get("p99"), lambda x: x <= 80, "ms"),
    ]  # fmt: skip


def _rest_goals(results: Results) -> list[Goal]:
    ours = [
        r
        for r in _of(results, "restart") or []
        if r["who"] == "plimsoll" and r["what"] == "restart"
    ]
    idle = next((r["memoryMiB"]["rss"] for r in ours if r["servers"] == 0), None)
    most = max(ours, key=lambda r: r["servers"], default=None)
    writes = most["calls"]["writes"] if most else None
    number = f"{most['servers']:,}" if most else "10,000"
    return [
        _goal("at most 75 MiB idle", idle, lambda x: x <= 75, "MiB"),
        _goal(
            f"at most 12 kB for each of {number} servers", slope_of(ours, "plimsoll"), lambda x: x <= 12, "kB",
        ),
        _goal(f"no write on a warm restart with {number}", writes, lambda x: x == 0, "writes"),
    ]  # fmt: skip


def _life_goals(results: Results) -> list[Goal]:
    calls = (_of(results, "stamped") or {}).get("callsWithDeletion", {})
    return [
        _goal("at most 8 writes a life, Events apart", calls.get("writesEach"), lambda x: x <= 8, ""),
        _goal("at most 4 reads a life", calls.get("readsEach"), lambda x: x <= 4, ""),
    ]  # fmt: skip


PARTS: Final[dict[str, Callable[[Any], str]]] = {
    "burst": _burst,
    "rate": _rate,
    "stamped": _stamped,
    "fairness": _fairness,
    "restart": _restart,
    "cold": _cold,
    "startup": _startup,
    "images": _images,
    "sizer": _sizer,
}
