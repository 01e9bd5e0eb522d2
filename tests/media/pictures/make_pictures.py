#!/usr/bin/env python3
"""Writes the pictures of this folder and expected.json: the size and the SHA-256 of the RGB pixels
that Pillow reads from each (EXIF orientation applied, alpha over white as the official BAGEL code's
pil_img2rgb does). Needs Pillow 13.0.0, numpy, and cjpeg of libjpeg-turbo on PATH."""
import hashlib
import io
import json
import pathlib
import random
import struct
import subprocess
import zlib

import numpy
from PIL import Image, ImageOps

FOLDER = pathlib.Path(__file__).resolve().parent
random.seed(20)


def waves(width, height, channels):
    """uint8 [height, width, channels]: smooth, with a hard edge and some noise."""
    y, x = numpy.mgrid[0:height, 0:width]
    planes = [127 + 120 * numpy.sin(x / (3 + c) + c) * numpy.cos(y / (4 + c)) for c in range(channels)]
    picture = numpy.stack(planes, -1) + numpy.random.default_rng(1).integers(-9, 10, (height, width, channels))
    picture[height // 2:, : width // 3] = 250
    return numpy.clip(picture, 0, 255).astype(numpy.uint8)


def tiff(orientation, order, kind="H"):
    """An EXIF structure of two entries; kind H: SHORT, I: LONG."""
    entries = [(0x0100, 3, struct.pack(order + "HH", 5, 0)),
               (0x0112, 3 if kind == "H" else 4, struct.pack(order + kind, orientation).ljust(4, b"\0"))]
    packed = b"".join(struct.pack(order + "HHI", tag, type_, 1) + value for tag, type_, value in entries)
    return ({"<": b"II", ">": b"MM"}[order] + struct.pack(order + "HIH", 42, 8, len(entries)) + packed + bytes(4))


def jpeg(picture, mode=None, **options):
    out = io.BytesIO()
    Image.fromarray(picture, mode).save(out, "JPEG", **{"quality": 85, **options})
    return out.getvalue()


def cjpeg(picture, *flags):
    ppm = b"P6 %d %d 255\n" % (picture.shape[1], picture.shape[0]) + picture.tobytes()
    return subprocess.run(["cjpeg", *flags], input=ppm, capture_output=True, check=True).stdout


def png(width, height, depth, color_type, rows, **chunks):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    header = struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, 0)
    extra = b"".join(chunk(name.encode(), data) for name, data in chunks.items())
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def bmp(width, height, bits, data, palette=b"", header=40, compression=0, colors=0, masks=(), offset=None):
    packed = struct.pack(f"<{len(masks)}I", *masks)
    if header == 12:
        info = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        info = struct.pack("<IiiHHIIiiII", header, width, height, 1, bits, compression, len(data), 2835, 2835, colors, 0)
        info += packed.ljust(header - 40, b"\0") if header > 40 else packed
    body = info + palette + data
    place = 14 + len(info) + len(palette) if offset is None else offset
    return b"BM" + struct.pack("<IHHI", 14 + len(body), 0, 0, place) + body


def plain_rows(width, height, bits):
    used = (width * bits + 7) // 8
    return b"".join(random.randbytes(used).ljust((used + 3) // 4 * 4, b"\0") for _ in range(height))


def palette(colors, entry=4):
    return b"".join(random.randbytes(3).ljust(entry, b"\0") for _ in range(colors))


def jpegs():
    color, gray, ink = waves(20, 13, 3), waves(20, 13, 1)[:, :, 0], waves(20, 13, 4)
    for name in ("444", "422", "420"):
        yield f"{name}.jpg", jpeg(color, subsampling=":".join(name))
    for name, sampling in (("440", "1x2"), ("411", "4x1"), ("410", "4x2"), ("311", "3x1")):
        yield f"{name}.jpg", cjpeg(color, "-sample", sampling)
    yield "progressive.jpg", jpeg(color, progressive=True, subsampling="4:2:0")
    yield "restarts.jpg", jpeg(color, restart_marker_blocks=1)
    yield "coarse.jpg", jpeg(color, quality=5, optimize=True)
    yield "rgb.jpg", jpeg(color, keep_rgb=True)
    yield "arithmetic.jpg", cjpeg(color, "-arithmetic")
    yield "gray.jpg", jpeg(gray)
    yield "gray_progressive.jpg", jpeg(gray, progressive=True)
    cmyk = jpeg(ink, "CMYK")
    adobe = cmyk.index(b"\xff\xee\0\x0eAdobe")
    yield "cmyk.jpg", cmyk
    yield "cmyk_progressive.jpg", jpeg(ink, "CMYK", progressive=True)
    yield "cmyk_no_adobe.jpg", cmyk[:adobe] + cmyk[adobe + 16:]
    yield "ycck.jpg", cmyk[:adobe + 15] + b"\2" + cmyk[adobe + 16:]
    yield "one_pixel.jpg", jpeg(color[:1, :1])
    yield "one_row.jpg", jpeg(waves(67, 1, 3))
    for orientation in range(1, 9):
        exif = b"Exif\0\0" + tiff(orientation, "<>"[orientation % 2])
        yield f"orientation_{orientation}.jpg", jpeg(waves(11, 7, 3), exif=exif, quality=50, optimize=True)
    yield "orientation_gray.jpg", jpeg(gray, exif=b"Exif\0\0" + tiff(5, ">", "I"))


def pngs():
    random_rows = [random.randbytes(64) for _ in range(5)]
    few = [bytes(random.choice((0, 7, 0x12, 0x34, 255)) for _ in range(64)) for _ in range(5)]
    yield "gray_alpha_16.png", png(7, 5, 16, 4, [row[:28] for row in random_rows])
    yield "rgba_16.png", png(7, 5, 16, 6, [row[:56] for row in random_rows])
    yield "rgb_16_key.png", png(7, 5, 16, 2, [b"\x12\x34" * 21] * 5, tRNS=struct.pack(">HHH", 0x12, 0x3412, 0x12))
    yield "gray_1_key.png", png(13, 5, 1, 0, [row[:2] for row in random_rows], tRNS=b"\0\1")
    yield "gray_2_key.png", png(13, 5, 2, 0, [row[:4] for row in random_rows], tRNS=b"\0\3")
    yield "gray_4_key.png", png(13, 5, 4, 0, [row[:7] for row in random_rows], tRNS=b"\0\0")
    yield "gray_8_key.png", png(13, 5, 8, 0, [row[:13] for row in few], tRNS=b"\1\7")
    yield "gray_16_key.png", png(13, 5, 16, 0, [row[:26] for row in few], tRNS=b"\0\xff")
    yield "palette_4_alpha.png", png(13, 5, 4, 3, [row[:7] for row in random_rows],
                                     PLTE=random.randbytes(48), tRNS=random.randbytes(9))
    yield "orientation_7.png", png(13, 5, 8, 3, [row[:13] for row in few], PLTE=random.randbytes(768),
                                   tRNS=bytes(range(0, 256, 32)), eXIf=tiff(7, "<"))
    yield "orientation_prefix.png", png(4, 5, 8, 2, [row[:12] for row in few], eXIf=b"Exif\0\0" + tiff(6, ">"))


def bmps():
    for bits in (1, 4, 8, 24):
        yield f"{bits}.bmp", bmp(13, 7, bits, plain_rows(13, 7, bits), palette(1 << bits) if bits < 24 else b"")
    yield "1_down.bmp", bmp(37, -3, 1, plain_rows(37, 3, 1), palette(2), header=124)
    yield "4_few_colors.bmp", bmp(5, 2, 4, b"\x01\x20\x10\0\x12\x10\x20\0", palette(3), colors=3)
    yield "24_core.bmp", bmp(5, 3, 24, plain_rows(5, 3, 24), header=12)
    yield "24_down.bmp", bmp(13, -7, 24, plain_rows(13, 7, 24), header=108)
    yield "bgra.bmp", bmp(13, 7, 32, plain_rows(13, 7, 32), header=108, compression=3,
                          masks=(0xFF0000, 0xFF00, 0xFF, 0xFF000000))
    yield "abgr_down.bmp", bmp(13, -7, 32, plain_rows(13, 7, 32), header=124, compression=3,
                               masks=(0xFF000000, 0xFF0000, 0xFF00, 0xFF))


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def webps():
    color, alpha = Image.fromarray(waves(21, 13, 3)), Image.fromarray(waves(21, 13, 4))
    yield "lossy.webp", saved(color, "WEBP", quality=80)
    yield "lossy_alpha.webp", saved(alpha, "WEBP", quality=60)
    yield "lossless.webp", saved(color, "WEBP", lossless=True)
    yield "lossless_alpha.webp", saved(alpha, "WEBP", lossless=True, exact=True)
    yield "orientation_6.webp", saved(color, "WEBP", quality=30, exif=b"Exif\0\0" + tiff(6, "<"))


def gifs():
    few = Image.fromarray(waves(23, 14, 3)).quantize(17)
    yield "plain.gif", saved(few, "GIF", interlace=0)
    yield "interlaced.gif", saved(few, "GIF", interlace=1)
    yield "transparent.gif", saved(few, "GIF", transparency=3)
    yield "animated.gif", saved(few, "GIF", save_all=True, append_images=[few.rotate(180)])


def tgas():
    picture = waves(19, 7, 4)
    yield "rgb.tga", saved(Image.fromarray(picture[:, :, :3]), "TGA")
    yield "rgb_runs.tga", saved(Image.fromarray(picture[:, :, :3] // 64 * 64), "TGA", compression="tga_rle")
    yield "rgba_down.tga", saved(Image.fromarray(picture), "TGA", orientation=1)
    yield "gray.tga", saved(Image.fromarray(picture[:, :, 0]), "TGA")


def pnms():
    picture = waves(19, 7, 3)
    yield "p6.ppm", saved(Image.fromarray(picture), "PPM")
    yield "p5.pgm", saved(Image.fromarray(picture[:, :, 0]), "PPM")


def packbits(row):
    out, at = b"", 0
    while at < len(row):
        run = 1
        while at + run < len(row) and run < 128 and row[at + run] == row[at]:
            run += 1
        out += bytes([257 - run, row[at]]) if run > 1 else bytes([0, row[at]])
        at += run
    return out


def psds():
    picture = waves(19, 7, 3) // 16 * 16
    head = b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 7, 19, 8, 3) + bytes(12)
    planes = [picture[:, :, c] for c in range(3)]
    yield "plain.psd", head + b"\0\0" + b"".join(plane.tobytes() for plane in planes)
    rows = [packbits(row.tobytes()) for plane in planes for row in plane]
    yield "runs.psd", head + b"\0\1" + b"".join(struct.pack(">H", len(row)) for row in rows) + b"".join(rows)


def pil_img2rgb(image):
    if image.mode == "RGBA" or image.info.get("transparency", None) is not None:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image.split()[3])
        return white
    return image.convert("RGB")


def main():
    expected = {}
    for pictures in (jpegs, pngs, bmps, webps, gifs, tgas, pnms, psds):
        for name, data in pictures():
            (FOLDER / name).write_bytes(data)
            rgb = numpy.asarray(pil_img2rgb(ImageOps.exif_transpose(Image.open(FOLDER / name))))
            expected[name] = {"height": rgb.shape[0], "width": rgb.shape[1],
                              "sha256": hashlib.sha256(rgb.tobytes()).hexdigest()}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in expected.items())
    (FOLDER / "expected.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
