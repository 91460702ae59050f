"""The programs that users run; none imports another, but the demo."""
