"""The nodes of a job before the job: who reaches whom at which address, how fast each pair's link is, whose clock."""
