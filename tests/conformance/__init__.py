"""Small programs that TensorFlow ran: penstock must give the same answers.

`cases/<area>.json` holds programs and the answers of TensorFlow 2.21; a new file is a new area.
A difference is a failure unless `docs/deviations.md` lists it and `cases/deviations.json` pins it.
`python -m tests.conformance.report [id-substring]` shows which programs agree and which differ.
"""
