"""What TensorFlow answered to small programs, asked again of penstock.

`cases/<area>.json` holds programs and the answers of TensorFlow 2.21; a new file is a new area.
A difference is a failure unless `docs/deviations.md` lists it and `cases/deviations.json` pins it.
`python -m tests.conformance.report [id-substring]` shows where things stand.
"""
