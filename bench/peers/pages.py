"""The pages of `bench/run pages`, read by trafilatura: pages.py FILE MAIN BESIDE prints the nanoseconds that the extraction
took, and how many texts hold MAIN and BESIDE, as a JSON list."""

import json
import sys
import time

from trafilatura import extract

path, main, beside = sys.argv[1:4]
pages = []
with open(path, "rb") as file:
    while length := file.read(8):
        pages.append(file.read(int.from_bytes(length, "little")).decode())
extract(pages[0])

taken, mains, besides = 0, 0, 0
for page in pages:
    start = time.perf_counter_ns()
    text = extract(page)
    taken += time.perf_counter_ns() - start
    mains += main in (text or "")
    besides += beside in (text or "")
print(json.dumps([taken, mains, besides]))
