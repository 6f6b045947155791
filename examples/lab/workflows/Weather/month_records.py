"""The values of a column on all days of a month: a table of date and value."""

import csv
import json
import sys

inputs = json.load(sys.stdin)["inputs"]
with open(inputs["data"], newline="") as file:
    rows = csv.DictReader(file)
    print("date", "value", sep="\t")
    for row in rows:
        # Dates are 2012/01/31 in some editions of the file and 2012-01-31 in others.
        date = row["date"].replace("/", "-")
        if int(date.split("-")[1]) == inputs["month"]:
            print(date, row[inputs["column"]], sep="\t")
