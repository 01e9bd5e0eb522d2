#include "lib/pipelines/mot/packing.h"

#include <utility>

namespace diptych {

PaintRequest packed_request(MotJobs jobs) {
  PaintRequest request = jobs.front()->paint;
  request.sizes.clear();
  request.clean_rows.clear();
  for (const MotJob* job : jobs) {
    request.sizes.push_back(job->size());
    const std::vector<std::int64_t>& clean = job->paint.clean_rows;
    request.clean_rows.insert(request.clean_rows.end(), clean.begin(), clean.end());
  }
  return request;
}

std::vector<BranchContexts> pack_samples(std::vector<std::vector<BranchContexts>> samples) {
  std::vector<BranchContexts> packed = std::move(samples.front());
  for (const auto& sample : std::span(samples).subspan(1)) {
    for (std::size_t b = 0; b < packed.size(); ++b)
      packed[b].samples.push_back(sample.at(b).samples.front());
  }
  return packed;
}

ContextsRequest packed_reading(std::span<const std::unique_ptr<MotTurn>> turns,
                               const PaintRequest& packed) {
  std::vector<std::vector<BranchContexts>> samples;
  for (const auto& turn : turns) samples.push_back(turn->branches);
  ContextsRequest reading;
  reading.branches = pack_samples(std::move(samples));
  reading.own_rows = packed.block_rows();
  return reading;
}

}  // namespace diptych
