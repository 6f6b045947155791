"""The mean of the values in the table of month_records, of all years or of one."""

import csv
import json
import math
import sys

job = json.load(sys.stdin)
year = job["inputs"]["year"]
with open(job["dependencies"]["month_records"]["path"], newline="") as file:
    rows = csv.DictReader(file, delimiter="\t")
    values = [float(row["value"]) for row in rows if year is None or row["date"].startswith(f"{year}-")]
if not values:
    sys.exit(f"no records of month {job['inputs']['month']} in {year or 'any year'}")
print(f"{math.fsum(values) / len(values):.3f}")
