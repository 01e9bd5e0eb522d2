// The pictures BAGEL reads: from decoded pixels to the rows of its two image blocks.
// specs: bagel.md sections 3, 4 and 8; ByteDance-Seed/Bagel @056b5fd, inferencer.py and
// modeling/bagel/bagel.py (prepare_vae_images, prepare_vit_images).
#pragma once

#include <cstdint>
#include <string>

#include "lib/media/image.h"
#include "lib/media/image_transform.h"
#include "lib/pipelines/bagel/checkpoint.h"
#include "lib/tensor/trace.h"

namespace diptych {

struct ImageTransforms {
  ImageTransform vae, vit;
  // The official application's (1024, 512, 16) and (980, 224, 14), scaled to the checkpoint's
  // position tables where those are smaller.
  static ImageTransforms of(const BagelConfig& config);
};

struct BagelImage {
  Tensor vae_pixels;   // float32 [1, 3, H, W] in -1..1, on the CPU
  Tensor vit_pixels;   // float32 [1, 3, h, w] likewise, from the picture already resized above
  LatentSize latent;   // H / 16, W / 16
  LatentSize patches;  // h / 14, w / 14
  Tensor moments;      // of the autoencoder, once encoded
  Tensor latent_rows;  // float32 [h * w, 64]: the posterior sampled, once drawn
  Tensor vit_rows;     // [patches, hidden] with position rows added, once encoded

  // No pixels, but the sizes that prepare() would find for a picture of this size.
  static BagelImage sized(ImageSize size, const ImageTransforms& transforms,
                          const BagelConfig& config);
  // image uint8 [H, W, 3].
  static BagelImage prepare(const Tensor& image, const ImageTransforms& transforms,
                            const BagelConfig& config);
};

// Where a picture's tensors are recorded.
struct ImageTrace {
  TraceSink* sink = nullptr;  // null: off
  std::string name;           // "prefill.00.cond.vae"
};

// Latent rows [h * w, 64], float32 on the device: the posterior sampled with `generator`, packed;
// drawn once, then kept.
Tensor encode_latent(BagelImage& image, const BagelCheckpoint& checkpoint, at::Generator& generator,
                     const Runtime& runtime, const ImageTrace& trace);
// The rows of the vision transformer behind the connector, positions added: [patches, hidden].
Tensor encode_patches(BagelImage& image, const BagelCheckpoint& checkpoint, const Runtime& runtime,
                      const ImageTrace& trace);

}  // namespace diptych
