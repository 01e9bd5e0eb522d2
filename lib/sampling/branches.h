// Classifier-free guidance over a text and an image scale: which branches are needed at t, and how
// their velocities combine. Pure maths; how branches execute is the caller's.
// ByteDance-Seed/Bagel @056b5fd, modeling/bagel/bagel.py (_forward_flow); specs: bagel.md 7.1.
#pragma once

#include <string>
#include <string_view>

#include "lib/base/choices.h"
#include "lib/tensor/types.h"

namespace diptych {

struct Guidance {
  double text_scale = 4.0, image_scale = 1.0;
  double interval_low = 0.4, interval_high = 1.0;
  Renorm renorm = Renorm::global;
  double renorm_min = 0.0;
  bool operator==(const Guidance&) const = default;

  // Guidance acts where low < t <= high, compared in float32 as torch compares a float32 tensor
  // with a Python number.
  bool active(float t) const;
  bool uses_text(float t) const { return active(t) && text_scale > 1; }
  // The image branch without text guidance would not enter the result, so it is not run then.
  bool uses_image(float t) const { return uses_text(t) && image_scale > 1; }

  // cond, text_uncond, img_uncond [rows, columns]; an undefined text_uncond leaves cond as it is,
  // an undefined img_uncond leaves the image scale out. The dtype follows the official code: the
  // factor of `global` keeps the velocity's dtype, the per-row factors make it float32.
  Tensor combine(const Tensor& cond, const Tensor& text_uncond, const Tensor& img_uncond) const;
};

}  // namespace diptych
