"""What is checked and made for a release: ``make release-check``, ``make release-artifacts``."""
