"""Whether a limit holds, and which limit a container shall have: values in, values out."""
