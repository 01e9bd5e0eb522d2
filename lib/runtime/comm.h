// Which ranks work together, and on what: plain numbers. Their groups are those of ranks.h.
#pragma once

#include <cstddef>

namespace diptych {

// Into how many parts the work on one request is cut.
struct ParallelDegrees {
  std::size_t cfg = 1;      // guidance branches, a rank for each part of them
  std::size_t ulysses = 1;  // attention heads
  std::size_t ring = 1;     // queries of attention, each for all keys and values
  std::size_t stages = 1;   // 2: reading has a rank of its own
  std::size_t of_rows() const { return ulysses * ring; }
  bool divides_steps() const { return cfg * of_rows() > 1; }
  std::size_t ranks_per_request() const { return stages * cfg * of_rows(); }
  bool operator==(const ParallelDegrees&) const = default;
};

// One of the groups that a rank is in: how many ranks it has, and which of them this one is.
struct RankGroup {
  std::size_t size = 1, index = 0;
  bool operator==(const RankGroup&) const = default;
};

// The groups of one rank. Ranks with the same index in `data` share their requests; the ranks of
// the other groups but `request` differ in the index of that group alone.
struct Comm {
  RankGroup data, stage, cfg, ulysses, ring;  // stage 0 paints, stage 1 reads
  RankGroup request;  // all of the stage that share a request, in the order of their ranks
  bool divides_steps() const { return request.size > 1; }
  // Of the ranks that share a request, the one that writes its results.
  bool leads() const {
    return stage.index == 0 && cfg.index == 0 && ulysses.index == 0 && ring.index == 0;
  }

  // rank = (((data * stages + stage) * cfg + cfg index) * ring + ring index) * ulysses + ulysses
  // index: ranks that exchange the most are neighbours, on one host. Throws InputError where the
  // ranks are not a multiple of degrees.ranks_per_request(), c10::Error for a degree of 0 or a rank
  // outside [0, world_size).
  static Comm of_rank(std::size_t rank, std::size_t world_size, const ParallelDegrees& degrees);
};

ParallelDegrees degrees_of(const Comm& comm);

}  // namespace diptych
