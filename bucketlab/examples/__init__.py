"""What the README's first command trains. Scripts and models as a user has them: nothing in here knows BucketLab."""
