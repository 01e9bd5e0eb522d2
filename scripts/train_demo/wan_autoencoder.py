"""The video autoencoder of Wan 2.2 in the names of Wan2.2_VAE.pth, at the demo's size.

Learned from Wan-Video/Wan2.2 @388807310646, wan/modules/vae2_2.py. A clip goes through whole instead of in
chunks: the first frame stands alone, every four after it become one latent frame, and where the chunked code
treats its first chunk otherwise, the same is done here to the first frame. float32 [n, channels, t, h, w].
"""
import functools

import torch
import torch.nn.functional as F
from torch import nn

LATENT = 48
TIME, SIDE = 4, 16  # frames and pixels of a latent row
ENCODER_BASE, DECODER_BASE = 8, 12
MULTIPLIERS = (1, 2, 4, 4)
HALVES_TIME = (False, True, True)  # of the encoder's stages but the last
# A posterior so narrow that its noise is nothing: latents that condition are drawn from it.
LOG_VARIANCE = -20.0

# What Wan 2.2 divides its latents by and takes off before, per channel: vae2_2.py, Wan2_2_VAE.
MEAN = (-0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813, 0.0891,
        0.1570, -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502,
        -0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230, -0.0313, -0.1649, 0.0117, 0.0723,
        -0.2839, -0.2083, -0.0520, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667)
STD = (0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901,
       0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
       0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944,
       0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744)


class CausalConv(nn.Conv3d):
    """Sees no later frame: zeros stand before the first."""

    def __init__(self, wide, out, kernel, padding=0, stride=1):
        super().__init__(wide, out, kernel, stride=stride, padding=(0, padding, padding))
        self.before = 2 * padding

    def forward(self, x):
        return super().forward(F.pad(x, (0, 0, 0, 0, self.before, 0)))


class Norm(nn.Module):
    def __init__(self, channels, spatial=False):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, *((1, 1) if spatial else (1, 1, 1))))

    def forward(self, x):
        return F.normalize(x.float(), dim=1).to(x.dtype) * (x.shape[1] ** 0.5 * self.gamma)


class ResidualBlock(nn.Module):
    def __init__(self, wide, out):
        super().__init__()
        self.residual = nn.Sequential(Norm(wide), nn.SiLU(), CausalConv(wide, out, 3, 1), Norm(out), nn.SiLU(),
                                      nn.Dropout(0.0), CausalConv(out, out, 3, 1))
        self.shortcut = CausalConv(wide, out, 1) if wide != out else nn.Identity()

    def forward(self, x):
        return self.shortcut(x) + self.residual(x)


class AttentionBlock(nn.Module):
    """Within a frame, one head."""

    def __init__(self, channels):
        super().__init__()
        self.norm = Norm(channels, spatial=True)
        self.to_qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        n, c, t, h, w = x.shape
        frames = x.transpose(1, 2).reshape(n * t, c, h, w)
        q, k, v = self.to_qkv(self.norm(frames)).flatten(2).transpose(1, 2).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)).squeeze(1)
        mixed = self.proj(mixed.transpose(1, 2).reshape(n * t, c, h, w))
        return x + mixed.view(n, t, c, h, w).transpose(1, 2)


def frames_of(x, layer):
    """A two-dimensional layer over every frame."""
    n, _, t, _, _ = x.shape
    y = layer(x.transpose(1, 2).flatten(0, 1))
    return y.unflatten(0, (n, t)).transpose(1, 2)


class Resample(nn.Module):
    def __init__(self, channels, up, time):
        super().__init__()
        self.up, self.time = up, time
        self.resample = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="nearest-exact") if up else nn.ZeroPad2d((0, 1, 0, 1)),
            nn.Conv2d(channels, channels, 3, padding=1) if up else nn.Conv2d(channels, channels, 3, stride=2))
        if time and up:
            self.time_conv = CausalConv(channels, 2 * channels, (3, 1, 1))
            self.time_conv.before = 2
        elif time:
            self.time_conv = CausalConv(channels, channels, (3, 1, 1), stride=(2, 1, 1))

    def forward(self, x):
        if self.up and self.time and x.shape[2] > 1:
            n, c, t, h, w = x.shape
            pairs = self.time_conv(x[:, :, 1:]).view(n, 2, c, t - 1, h, w)
            x = torch.cat([x[:, :, :1], pairs.permute(0, 2, 3, 1, 4, 5).reshape(n, c, 2 * t - 2, h, w)], dim=2)
        x = frames_of(x, self.resample)
        if self.time and not self.up and x.shape[2] > 1:
            x = torch.cat([x[:, :, :1], self.time_conv(x)], dim=2)
        return x


def averaged_down(x, out, time, space):
    """Space (and time) into channels, and the mean over groups of them."""
    x = F.pad(x, (0, 0, 0, 0, time - 1, 0))
    n, c, t, h, w = x.shape
    x = x.view(n, c, t // time, time, h // space, space, w // space, space)
    x = x.permute(0, 1, 3, 5, 7, 2, 4, 6).reshape(n, out, -1, t // time, h // space, w // space)
    return x.mean(dim=2)


def repeated_up(x, out, time, space):
    n, c, t, h, w = x.shape
    x = x.repeat_interleave(out * time * space * space // c, dim=1)
    x = x.view(n, out, time, space, space, t, h, w).permute(0, 1, 5, 2, 6, 3, 7, 4)
    return x.reshape(n, out, t * time, h * space, w * space)[:, :, time - 1:]


class Down(nn.Module):
    def __init__(self, wide, out, halves_time, last):
        super().__init__()
        self.out, self.time, self.space = out, 2 if halves_time else 1, 1 if last else 2
        parts = [ResidualBlock(wide, out), ResidualBlock(out, out)]
        self.downsamples = nn.ModuleList(parts if last else parts + [Resample(out, False, halves_time)])

    def forward(self, x):
        y = x
        for part in self.downsamples:
            y = part(y)
        return y + averaged_down(x, self.out, self.time, self.space)


class Up(nn.Module):
    def __init__(self, wide, out, doubles_time, last):
        super().__init__()
        self.out, self.time, self.last = out, 2 if doubles_time else 1, last
        parts = [ResidualBlock(wide, out), ResidualBlock(out, out), ResidualBlock(out, out)]
        self.upsamples = nn.ModuleList(parts if last else parts + [Resample(out, True, doubles_time)])

    def forward(self, x):
        y = x
        for part in self.upsamples:
            y = part(y)
        return y if self.last else y + repeated_up(x, self.out, self.time, 2)


def middle(channels):
    return nn.Sequential(ResidualBlock(channels, channels), AttentionBlock(channels),
                         ResidualBlock(channels, channels))


class Encoder(nn.Module):
    def __init__(self, base):
        super().__init__()
        widths = [base] + [base * m for m in MULTIPLIERS]
        self.conv1 = CausalConv(12, base, 3, 1)
        self.downsamples = nn.ModuleList(
            Down(widths[i], widths[i + 1], i < 3 and HALVES_TIME[i], i == 3) for i in range(4))
        self.middle = middle(widths[-1])
        self.head = nn.Sequential(Norm(widths[-1]), nn.SiLU(), CausalConv(widths[-1], 2 * LATENT, 3, 1))

    def forward(self, x):
        x = self.conv1(x)
        for stage in self.downsamples:
            x = stage(x)
        return self.head(self.middle(x))


class Decoder(nn.Module):
    def __init__(self, base):
        super().__init__()
        widths = [base * m for m in (MULTIPLIERS[-1], *MULTIPLIERS[::-1])]
        self.conv1 = CausalConv(LATENT, widths[0], 3, 1)
        self.middle = middle(widths[0])
        self.upsamples = nn.ModuleList(
            Up(widths[i], widths[i + 1], i < 3 and HALVES_TIME[::-1][i], i == 3) for i in range(4))
        self.head = nn.Sequential(Norm(widths[-1]), nn.SiLU(), CausalConv(widths[-1], 12, 3, 1))

    def forward(self, x):
        x = self.middle(self.conv1(x))
        for stage in self.upsamples:
            x = stage(x)
        return self.head(x)


def patchify(x):
    """[n, 3, t, h, w] -> [n, 12, t, h / 2, w / 2], channel = colour * 4 + column * 2 + row."""
    n, c, t, h, w = x.shape
    x = x.view(n, c, t, h // 2, 2, w // 2, 2).permute(0, 1, 6, 4, 2, 3, 5)
    return x.reshape(n, 4 * c, t, h // 2, w // 2)


def unpatchify(x):
    n, c, t, h, w = x.shape
    x = x.view(n, c // 4, 2, 2, t, h, w).permute(0, 1, 4, 5, 3, 6, 2)
    return x.reshape(n, c // 4, t, 2 * h, 2 * w)


class Autoencoder(nn.Module):
    """Clips of 4k + 1 frames in -1..1."""

    def __init__(self, encoder_base=ENCODER_BASE, decoder_base=DECODER_BASE):
        super().__init__()
        self.encoder, self.decoder = Encoder(encoder_base), Decoder(decoder_base)
        self.conv1 = CausalConv(2 * LATENT, 2 * LATENT, 1)
        self.conv2 = CausalConv(LATENT, LATENT, 1)

    def moments(self, clips):
        """The mean and the logarithm of the variance of raw latents."""
        return self.conv1(self.encoder(patchify(clips))).float().chunk(2, dim=1)

    def encode(self, clips):
        """Standardised latents."""
        return (self.moments(clips)[0] - constant(MEAN, clips)) / constant(STD, clips)

    def decode_raw(self, raw):
        return unpatchify(self.decoder(self.conv2(raw)))

    def raw(self, latents):
        return latents * constant(STD, latents) + constant(MEAN, latents)

    def decode(self, latents):
        return self.decode_raw(self.raw(latents)).float().clamp(-1, 1)

    @torch.no_grad()
    def standardise(self, mean, std):
        """Changes what lies between encoder and decoder, so that raw latents with this mean and standard
        deviation per channel become those of Wan 2.2; the clips stay as they were. From here on the posterior
        has no width."""
        own_mean, own_std = torch.tensor(MEAN, device=mean.device), torch.tensor(STD, device=mean.device)
        a = own_std / std
        b = own_mean - a * mean
        into, out = self.conv1, self.conv2
        out.bias.add_((out.weight.flatten(1) @ (-b / a)))  # raw = (given - b) / a
        out.weight.div_(a.view(1, -1, 1, 1, 1))
        into.weight[:LATENT].mul_(a.view(-1, 1, 1, 1, 1))
        into.bias[:LATENT].mul_(a).add_(b)
        into.weight[LATENT:].zero_()
        into.bias[LATENT:].fill_(LOG_VARIANCE)


def constant(values, like):
    return on_device(values, like.device)


@functools.lru_cache
def on_device(values, device):
    return torch.tensor(values, device=device, dtype=torch.float32).view(1, -1, 1, 1, 1)


def to_rows(latents):
    """[n, 48, t, h, w] -> [n, t * h * w, 48]."""
    return latents.flatten(2).transpose(1, 2)


def from_rows(rows, t, h, w):
    return rows.transpose(1, 2).reshape(len(rows), LATENT, t, h, w)
