"""What is remembered of the last hour, and which incidents are recorded: values in, values out."""
