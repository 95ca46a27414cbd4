"""The `deepspeed` strategy: DeepSpeed's engine, with ZeRO's stages 0 to 2."""
