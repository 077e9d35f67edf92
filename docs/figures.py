#!/usr/bin/env python3
"""Figures for papers from the tables simple_results_*.csv of `dmtree bench ... --out DIR`.

For each table one file with a chart per workload: a bar for each system, or curves where the
systems have points of a sweep, such as "dmtree [threads=12]". It takes the columns Index, Workload
and Total, million operations per second. Needs Python 3.9 and matplotlib 3.7 (pip install matplotlib).
"""

import argparse
import csv
import re
import sys
from pathlib import Path

COLOURS = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7f6a00", "#000000", "#777777", "#5b2a86"]
# Workloads have other names in the tables than in the published figures.
MICRO = {"ycsb-c": "search", "insert-only": "insert", "update-only": "update", "scan-only": "scan"}


def rows(path, columns):
    """The rows of a table, without its comment lines."""
    try:
        with open(path, newline="", encoding="utf-8") as f:
            table = csv.DictReader(line for line in f if not line.startswith("#"))
            lacking = [c for c in columns if c not in (table.fieldnames or [])]
            if lacking:
                sys.exit(f"{path}: no column {', '.join(lacking)}; it has {', '.join(table.fieldnames or ['none'])}")
            found = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        sys.exit(f"cannot read {path}: {e}")
    for n, row in enumerate(found, 1):
        try:
            row[columns[-1]] = float(row[columns[-1]])
        except (TypeError, ValueError):
            sys.exit(f"{path}: row {n}: {columns[-1]} is {row[columns[-1]]!r}, not a number")
    if not found:
        sys.exit(f"{path}: no rows")
    return found


def tables(path):
    """The tables of a folder, or the one that was given."""
    here = sorted(path.glob("simple_results_*.csv")) if path.is_dir() else [path]
    return here or sys.exit(f"{path}: no simple_results_*.csv in it")


def split(index):
    """A system and its point of a sweep: "dmtree [threads=12]" is ("dmtree", "threads", "12", 12)."""
    m = re.fullmatch(r"(.*) \[(?:(.*) )?([a-z][\w.-]*)=(.*)\]", index)
    if not m:
        return index, None, None, None
    # A size, or the last number of the value: 7.5GB, 512KiB, uniform(1..=100).
    number, unit = (re.findall(r"(\d+(?:\.\d+)?)([KMGT]i?B)?", m[4]) or [("0", "")])[-1]
    x = float(number) * (1024 if "i" in unit else 1000) ** " KMGT".find(unit[:1])
    return m[1] + (f", {m[2]}" if m[2] else ""), m[3], m[4], x


def draw(plt, path, marks, target):
    found = rows(path, ["Index", "Workload", "Total"])
    workloads = list(dict.fromkeys(r["Workload"] for r in found))
    names = list(dict.fromkeys(split(r["Index"])[0] for r in found))
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    figure, axes = plt.subplots(1, len(workloads), figsize=(2.6 * len(workloads) + 0.6, 2.8), squeeze=False)
    for ax, workload in zip(axes[0], workloads):
        mine = [(*split(r["Index"]), r["Total"]) for r in found if r["Workload"] == workload]
        for i, name in enumerate(names):
            points = sorted((x, label, y) for n, _, label, x, y in mine if n == name and label is not None)
            single = [y for n, _, label, _, y in mine if n == name and label is None]
            if points:
                ax.plot([p[0] for p in points], [p[2] for p in points], "o-", ms=3, color=colour[name], label=name)
                xs = [p[0] for p in points]
                if len(xs) > 2 and all(0 < 1.9 * a <= b for a, b in zip(xs, xs[1:])):
                    ax.set_xscale("log")
                ax.set_xlabel(next(s for n, s, *_ in mine if n == name and s))
                ax.set_xticks(xs, [p[1] for p in points])
                ax.minorticks_off()
            elif single:
                ax.bar(i, single[0], color=colour[name], label=name)
                ax.set_xticks([])
                mark = marks.get((re.sub(r"(-published)?( \(as published\))?$", "", name), MICRO.get(workload, workload)))
                if mark is not None:
                    ax.hlines(mark, i - 0.45, i + 0.45, color="black", lw=2, label="published")
        ax.set_title(workload, fontsize=9)
        ax.set_ylim(bottom=0)
    axes[0][0].set_ylabel("million operations / s")
    handles = {label: h for ax in axes[0] for h, label in zip(*ax.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=min(len(handles), 5), fontsize=8, frameon=False)
    figure.savefig(target)
    plt.close(figure)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("table", nargs="+", type=Path, help="a CSV table, or a folder with simple_results_*.csv")
    p.add_argument("--out", type=Path, default=Path("."), help="folder of the figures (default: this one)")
    p.add_argument("--format", choices=["pdf", "svg", "png"], default="pdf", help="form of the files (default: pdf)")
    p.add_argument("--published", help="published figures, such as lab/experiments/published/fast26-micro.csv")
    a = p.parse_args()
    try:
        import matplotlib
    except ImportError:
        sys.exit("matplotlib is not installed: pip install matplotlib")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 8, "figure.constrained_layout.use": True, "pdf.fonttype": 42, "svg.fonttype": "none"})
    published = rows(a.published, ["distribution", "system", "workload", "mops"]) if a.published else []
    a.out.mkdir(parents=True, exist_ok=True)
    for path in (table for given in a.table for table in tables(given)):
        here = [r for r in published if f"_{r['distribution']}" in path.stem]
        target = a.out / f"{path.stem}.{a.format}"
        draw(plt, path, {(r["system"], r["workload"]): r["mops"] for r in here}, target)
        print(target)


if __name__ == "__main__":
    try:
        main()
    except OSError as e:
        sys.exit(f"{e.filename}: {e.strerror}")
