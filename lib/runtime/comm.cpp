#include "lib/runtime/comm.h"

#include <c10/util/Exception.h>

#include "lib/base/error.h"

namespace diptych {

ParallelDegrees degrees_of(const Comm& comm) {
  return {comm.cfg.size, comm.ulysses.size, comm.ring.size, comm.stage.size};
}

Comm Comm::of_rank(std::size_t rank, std::size_t world_size, const ParallelDegrees& degrees) {
  const std::size_t shared = degrees.ranks_per_request();
  TORCH_CHECK(shared > 0, "[comm] degrees are cfg ", degrees.cfg, ", ulysses ", degrees.ulysses,
              ", ring ", degrees.ring, ", stages ", degrees.stages, "; expected 1 or more each");
  TORCH_CHECK(rank < world_size, "[comm] rank ", rank, " of ", world_size);
  if (world_size % shared != 0) {
    throw InputError("found {} rank(s), expected a multiple of {} (cfg {}, ulysses {}, ring {}{})",
                     world_size, shared, degrees.cfg, degrees.ulysses, degrees.ring,
                     degrees.stages > 1 ? ", and reading apart" : "");
  }
  Comm comm;
  const std::size_t of_stage = degrees.cfg * degrees.of_rows();
  comm.request = {of_stage, rank % of_stage};
  comm.ulysses = {degrees.ulysses, rank % degrees.ulysses};
  rank /= degrees.ulysses;
  comm.ring = {degrees.ring, rank % degrees.ring};
  rank /= degrees.ring;
  comm.cfg = {degrees.cfg, rank % degrees.cfg};
  rank /= degrees.cfg;
  comm.stage = {degrees.stages, rank % degrees.stages};
  comm.data = {world_size / shared, rank / degrees.stages};
  return comm;
}

}  // namespace diptych
