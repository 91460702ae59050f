"""What people read of the cluster: one view of it for the terminal, the page and the doctor."""
