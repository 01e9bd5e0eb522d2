// Jobs that are painted together, as one request.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lib/pipelines/mot/job.h"

namespace diptych {

PaintRequest packed_request(MotJobs jobs);

// What each of the samples reads in the same branches -> the branches of all of them.
std::vector<BranchContexts> pack_samples(std::vector<std::vector<BranchContexts>> samples);

// What these turns read, with the plans that are there, for a request that packs them.
ContextsRequest packed_reading(std::span<const std::unique_ptr<MotTurn>> turns,
                               const PaintRequest& packed);

}  // namespace diptych
