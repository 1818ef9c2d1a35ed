"""Trains two networks against each other: two DDP modules, two optimizers, two steps in turn."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tiny import STEPS, WIDTH, batch, dump, finish, network, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NOISE = 16

start()
generator = DistributedDataParallel(nn.Sequential(nn.Linear(NOISE, 64), nn.ReLU(), nn.Linear(64, WIDTH)))
critic = DistributedDataParallel(network(), broadcast_buffers=False)
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
losses = []
for step in range(STEPS):
    real, _ = batch(step)
    noise = real[:, :NOISE]

    critic_optimizer.zero_grad()
    verdicts = critic(torch.cat([real, generator(noise).detach()]))
    critic_loss = F.binary_cross_entropy_with_logits(verdicts, torch.arange(16).lt(8).float()[:, None])
    critic_loss.backward()
    critic_optimizer.step()

    generator_optimizer.zero_grad()
    generator_loss = F.softplus(-critic(generator(noise))).mean()  # goes through the critic's gradients too
    generator_loss.backward()
    generator_optimizer.step()
    losses.append([critic_loss.item(), generator_loss.item()])
dump(generator, critic, losses=losses)
finish()
