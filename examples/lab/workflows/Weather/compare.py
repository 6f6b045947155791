"""One year's mean of a month beside the mean of all years."""

import json
import sys

job = json.load(sys.stdin)
inputs, dependencies = job["inputs"], job["dependencies"]
mean, normal = dependencies["monthly_mean"]["value"], dependencies["normal"]["value"]
result = {
    "column": inputs["column"],
    "month": inputs["month"],
    "year": inputs["year"],
    "mean": mean,
    "mean_of_all_years": normal,
    "difference": round(mean - normal, 3),
}
print(json.dumps(result))
