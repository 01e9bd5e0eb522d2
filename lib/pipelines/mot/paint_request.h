// What painting on a MoT backbone takes from a request: sizes, guidance, schedule, and how its
// steps are to run. Made once.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/config/run_config.h"
#include "lib/pipelines/mot/contexts.h"
#include "lib/pipelines/mot/denoiser.h"
#include "lib/sampling/branches.h"
#include "lib/sampling/step_cache/step_calibration.h"

namespace diptych {

struct PaintRequest {
  std::vector<LatentSize> sizes;  // one per picture of the packed batch
  // Likewise: its first rows that are given without noise (DenoisedRows). Empty: none of any.
  std::vector<std::int64_t> clean_rows;
  Guidance guidance;
  // The `global` renorm takes its norms over each picture alone, so that a picture does not depend
  // on what it is packed with. The official code's batches take them over all pictures.
  bool renorm_whole_batch = false;
  CfgMode cfg_mode = CfgMode::batched;
  bool step_graphs = true;  // on CUDA, where a step can be captured
  // Between the pictures of a painter and the requests that it serves, with the memory of a step.
  bool keep_graphs = false;
  StepCacheConfig step_cache;
  FlowSchedule schedule;

  DenoisedRows denoised() const { return {sizes, clean_rows}; }
  bool caches() const { return step_cache.mode != StepCacheMode::none; }
  std::int64_t rows() const;                     // latent rows of all pictures
  std::vector<std::int64_t> block_rows() const;  // per picture: latent rows and two markers
  // How many terms of guidance act in step i.
  std::size_t terms_in(std::int64_t i) const;
  // Of the branches (cond first) cond and those that guidance asks for at some step; all of them
  // for a trace, which names them like the official code's.
  std::vector<BranchContexts> needed(std::vector<BranchContexts> all, bool tracing) const;
};

// All but its sizes, and batched for `auto`, which the session settles. `points`: of the schedule.
// `calibration`: of TeaCache, null without it. Throws as FlowSchedule::shifted.
PaintRequest make_paint_request(const RunConfig& config, std::vector<GuidanceTerm> terms,
                                std::int64_t points, const StepCalibration* calibration);

}  // namespace diptych
