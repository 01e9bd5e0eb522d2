// The results of this folder as JSON, for `--json`. Numbers that JSON cannot hold (NaN, infinities)
// become null.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lib/verify/clip_metrics.h"
#include "lib/verify/gates.h"
#include "lib/verify/metrics.h"
#include "lib/verify/probes.h"

namespace diptych {

nlohmann::json to_json(const ImageMetrics& metrics);  // psnr is null for equal pictures
// {"frames": N, "mean": {...}, "worst": {"ssim": {"value", "frame"}, ...}, "per_frame": [...]}
nlohmann::json to_json(const ClipMetrics& metrics);
nlohmann::json to_json(const GateResult& gate);
nlohmann::json to_json(const ProbeResult& result);

}  // namespace diptych
