"""What a verb runs, one file per job; `static.py` is the pipeline."""
