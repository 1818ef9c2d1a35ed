"""`python -m bucketlab`."""

from bucketlab.cli import main

main()
