"""What tests/gpu/run found out: rows with an outcome or a figure, kept as JSON after each, and shown as a table."""
import json
import os
import threading


def figure_text(value):
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if value and abs(value) < 0.01:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


class Results:
    """Rows are mappings: part, name, outcome (pass, fail, skip, figure), and where there are any value, unit, goal and note.
    goal: [">=" or "<=", number]; a figure beyond it is no failure, but is shown."""

    def __init__(self, path=None, machine=None):
        self.path, self.machine, self.rows = path, machine or {}, []
        self.lock = threading.Lock()

    @classmethod
    def read(cls, path):
        with open(path) as file:
            stored = json.load(file)
        results = cls(None, stored["machine"])
        results.rows = stored["rows"]
        return results

    def add(self, part, name, outcome, value=None, unit="", goal=None, note=""):
        assert outcome in ("pass", "fail", "skip", "figure"), outcome
        row = {"part": part, "name": name, "outcome": outcome, "value": value, "unit": unit, "goal": goal, "note": note}
        with self.lock:
            self.rows.append(row)
            print("  " + " ".join(field for field in line_of(row)[1:] if field), flush=True)
            self.write()
        return row

    def write(self):
        if not self.path:
            return
        with open(self.path + ".tmp", "w") as file:
            json.dump({"machine": self.machine, "rows": self.rows}, file, indent=1)
            file.write("\n")
        os.replace(self.path + ".tmp", self.path)

    def figure(self, name):
        return next((row["value"] for row in reversed(self.rows) if row["name"] == name and row["outcome"] == "figure"), None)

    def failed(self):
        return [row for row in self.rows if row["outcome"] == "fail"]

    def missed(self):
        return [row for row in self.rows if met(row) is False]

    def table(self):
        lines = [("part", "what", "result", "", "goal", "note")] + [line_of(row) for row in self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        text = [" ".join(f"{key} {value}" for key, value in self.machine.items())]
        for line in lines:
            cells = [cell.rjust(width) if column == 2 else cell.ljust(width)
                     for column, (cell, width) in enumerate(zip(line, widths))]
            text.append("  ".join(cells).rstrip())
        count = {outcome: sum(row["outcome"] == outcome for row in self.rows) for outcome in ("pass", "fail", "skip", "figure")}
        text.append(f"{count['pass']} passed, {count['fail']} failed, {count['skip']} skipped; {count['figure']} figures, "
                    f"{len(self.missed())} short of their goal")
        return "\n".join(text)


def met(row):
    """Whether a figure reaches its goal; None without one, or where it was not taken."""
    if not row["goal"] or row["value"] is None:
        return None
    sign, wanted = row["goal"]
    return row["value"] >= wanted if sign == ">=" else row["value"] <= wanted


def line_of(row):
    reached = met(row)
    verdict = {True: "yes", False: "NO", None: "?"}[reached]
    goal = f"{row['goal'][0]} {figure_text(row['goal'][1])} {verdict}" if row["goal"] else ""
    result = figure_text(row["value"]) if row["outcome"] == "figure" else row["outcome"]
    return row["part"], row["name"], result, row["unit"], goal, row["note"]
