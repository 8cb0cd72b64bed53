"""For pytest: loads penstock before any of its files is collected for doctests.

Otherwise pytest loads the first file itself, and then its classes exist twice.
"""

import penstock  # noqa: F401
