"""What runs inside the training process. It must never change what the script computes, nor make it fail."""
