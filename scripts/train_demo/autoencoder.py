"""The FLUX autoencoder in the names and layout of ae.safetensors, at the demo's size.

Learned from ByteDance-Seed/Bagel @056b5fd, modeling/autoencoder.py.
"""
import torch
import torch.nn.functional as F
from torch import nn

SCALE, SHIFT = 0.3611, 0.1159  # latent = SCALE * (z - SHIFT); fixed in the released code
# The ends are wide, since the last norm of encoder and decoder has 32 groups: with one channel a
# group it would take the mean away, and with it the colour of a plain picture.
CHANNELS, MULTIPLIERS, BLOCKS, LATENT = 32, (3, 1, 1, 3), 1, 16


def norm(channels):
    return nn.GroupNorm(32, channels, eps=1e-6)


class ResBlock(nn.Module):
    def __init__(self, wide, out):
        super().__init__()
        self.norm1, self.conv1 = norm(wide), nn.Conv2d(wide, out, 3, padding=1)
        self.norm2, self.conv2 = norm(out), nn.Conv2d(out, out, 3, padding=1)
        if wide != out:
            self.nin_shortcut = nn.Conv2d(wide, out, 1)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x) + h


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = norm(channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (layer(h).flatten(2).transpose(1, 2).unsqueeze(1)
                   for layer in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).reshape(x.shape)
        return x + self.proj_out(h)


class Mid(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.block_1, self.attn_1 = ResBlock(channels, channels), Attention(channels)
        self.block_2 = ResBlock(channels, channels)

    def forward(self, x):
        return self.block_2(self.attn_1(self.block_1(x)))


class Resample(nn.Module):  # holds the one convolution under the name `conv`
    def __init__(self, channels, stride):
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(channels, channels, 3, stride, padding=0 if stride == 2 else 1)

    def forward(self, x):
        if self.stride == 2:
            return self.conv(F.pad(x, (0, 1, 0, 1)))
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Level(nn.Module):
    def __init__(self, wide, out, blocks):
        super().__init__()
        self.block = nn.ModuleList(ResBlock(wide if i == 0 else out, out) for i in range(blocks))

    def forward(self, x):
        for block in self.block:
            x = block(x)
        return x


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [CHANNELS * m for m in MULTIPLIERS]
        self.conv_in = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.down = nn.ModuleList()
        for i, width in enumerate(widths):
            level = Level(widths[i - 1] if i else CHANNELS, width, BLOCKS)
            if i + 1 < len(widths):
                level.downsample = Resample(width, 2)
            self.down.append(level)
        self.mid = Mid(widths[-1])
        self.norm_out, self.conv_out = norm(widths[-1]), nn.Conv2d(widths[-1], 2 * LATENT, 3, padding=1)

    def forward(self, x):
        h = self.conv_in(x)
        for level in self.down:
            h = level(h)
            if hasattr(level, "downsample"):
                h = level.downsample(h)
        return self.conv_out(F.silu(self.norm_out(self.mid(h))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [CHANNELS * m for m in MULTIPLIERS]
        self.conv_in = nn.Conv2d(LATENT, widths[-1], 3, padding=1)
        self.mid = Mid(widths[-1])
        self.up = nn.ModuleList()
        for i, width in enumerate(widths):
            level = Level(widths[min(i + 1, len(widths) - 1)], width, BLOCKS + 1)
            if i:
                level.upsample = Resample(width, 1)
            self.up.append(level)
        self.norm_out, self.conv_out = norm(widths[0]), nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, z):
        h = self.mid(self.conv_in(z))
        for level in reversed(self.up):
            h = level(h)
            if hasattr(level, "upsample"):
                h = level.upsample(h)
        return self.conv_out(F.silu(self.norm_out(h)))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()

    def encode(self, pictures):
        """[n, 3, H, W] in -1..1 -> a sample of the posterior, as a latent [n, 16, H/8, W/8]."""
        mean, logvar = self.encoder(pictures).float().chunk(2, dim=1)
        noise = torch.randn_like(mean)
        return SCALE * (mean + torch.exp(0.5 * logvar) * noise - SHIFT)

    def decode(self, latent):
        return self.decoder(latent / SCALE + SHIFT)

    @torch.no_grad()
    def standardise(self, mean, std):
        """Folds an affine map into the weights, so that latents of this mean and std [16] come out
        with 0 and 1. What the decoder's zero padding makes of it at the border is left to training."""
        z_mean, z_std = mean / SCALE + SHIFT, std / SCALE
        a = 1 / (SCALE * z_std)
        b = SHIFT - a * z_mean
        out, into = self.encoder.conv_out, self.decoder.conv_in
        factors = torch.cat([a, torch.ones_like(a)])
        out.weight.mul_(factors.view(-1, 1, 1, 1))
        out.bias.mul_(factors)
        out.bias[:LATENT] += b
        out.bias[LATENT:] += 2 * a.log()
        into.weight.div_(a.view(1, -1, 1, 1))
        into.bias.sub_((into.weight.sum(dim=(2, 3)) * b).sum(dim=1))


def pack(latent):
    """[n, 16, 2h, 2w] -> rows [n, h * w, 64], columns (row, column, channel)."""
    n, c, h, w = latent.shape
    return latent.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(n, -1, 4 * c)


def unpack(rows, h, w):
    """[n, h * w, 64] -> [n, 16, 2h, 2w]."""
    n = rows.shape[0]
    return rows.view(n, h, w, 2, 2, LATENT).permute(0, 5, 1, 3, 2, 4).reshape(n, LATENT, 2 * h, 2 * w)
