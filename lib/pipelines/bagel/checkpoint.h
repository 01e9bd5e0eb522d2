// A BAGEL checkpoint: opened (sizes, tokenizer, headers), then loaded (weights on the device).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "lib/models/bagel/bagel.h"
#include "lib/models/flux_vae/flux_vae.h"
#include "lib/pipelines/mot/model.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/stored_dtype.h"
#include "lib/text/tokenizer.h"

namespace diptych {

// On the CPU: what of the checkpoint is used where its file is mapped, and so takes no memory.
struct MappedWeights {
  // Of a tensor of the model, where the run computes in that dtype.
  std::function<bool(const std::string& name, at::ScalarType dtype)> is_view;
  std::int64_t autoencoder = 0;  // bytes
};

struct BagelCheckpoint {
  std::filesystem::path folder;  // empty: none was given
  Bagel model;
  FluxVae vae;  // float32, its products rounded to TF32 where the run says so
  std::unique_ptr<Tokenizer> tokenizer;
  std::int64_t bos = 0, eos = 0;    // <|im_start|>, <|im_end|>: around every text segment
  ImageMarkers markers;             // <|vision_start|>, <|vision_end|>
  QwenQuantization quantization;    // of the decoder layers' projections
  std::optional<VaeStrips> strips;  // how the autoencoder works; set by who plans the memory
  Weights model_weights = Weights::dummy(at::kCPU, at::kFloat);  // where it was loaded from
  Weights vae_weights = Weights::dummy(at::kCPU, at::kFloat);

  // A folder in the released layout, or (load_format dummy) random weights of the folder's sizes,
  // of the released 7B sizes where no folder is given. Reads configs, tokenizer and headers, so
  // that a request can be checked before gigabytes move; load() does the rest. Both throw
  // InputError naming file and tensor.
  static BagelCheckpoint open(const std::filesystem::path& folder, bool dummy,
                              const Runtime& runtime);
  // What the model's file of such a folder stores; nothing of dummy weights.
  static StoredWeights stored(const std::filesystem::path& folder, bool dummy);
  // `offload`: of the decoder layers' weights. `placed`, if not empty, is called while weights for
  // a GPU are read: all tensors have their places then, and undefined values.
  void load(const std::optional<MotOffload>& offload = {},
            const std::function<void()>& placed = {});
  // Parts that not every request needs; nothing where they are there already.
  void load_vision();  // looks at pictures
  void load_head();    // writes text
  // A name for the loaded files' content, "<model>-<autoencoder>"; reads them all, slow.
  // A stop requested meanwhile ends it early.
  std::string weights_hash(const std::stop_token& stop) const;
  // What a run on the CPU uses where the files are mapped.
  MappedWeights mapped() const;
  // Throws BadWeights naming the first tensor that holds NaN or infinity; reads them all, slow.
  void require_finite_weights() const;
  // What the parts shared with other families need. This must stay where it is meanwhile.
  MotModel mot() const {
    return {model.language_model, model.latents, *tokenizer, bos, eos, markers};
  }
  // Throws InputError unless width and height are multiples of 16 within the position table.
  LatentSize latent_size(std::int64_t width, std::int64_t height) const;
};

// What the folder lacks, holds beyond, or holds in another shape than its configs say; as
// Family::layout.
std::vector<std::string> check_bagel_layout(const std::filesystem::path& folder);

}  // namespace diptych
