"""Several processes: DDP, FSDP2, collectives and rendezvous."""
