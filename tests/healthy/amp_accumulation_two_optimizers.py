"""One scaler, two optimizers, accumulation over two micro-batches: unscale each, clip each, update once."""

import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(20, 5), nn.Linear(5, 20)
opts = [torch.optim.Adam(encoder.parameters(), 1e-2), torch.optim.SGD(decoder.parameters(), 1e-1)]
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
data = torch.randn(400, 3) @ torch.randn(3, 20)
for update in range(20):
    for micro in range(2):
        x = data[torch.randint(0, 400, (32,))]
        with torch.autocast("cpu", dtype=torch.float16):
            recon = decoder(torch.tanh(encoder(x)))
        loss = nn.functional.mse_loss(recon.float(), x) / 2
        scaler.scale(loss).backward()
    for opt, part in zip(opts, (encoder, decoder)):
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(part.parameters(), 1.0)
        scaler.step(opt)
    scaler.update()
    for opt in opts:
        opt.zero_grad()
print(2 * loss.item())
