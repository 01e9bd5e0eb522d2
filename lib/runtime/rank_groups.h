// The groups of ranks behind Ranks, one kind for each kind of device.
#pragma once

#include <chrono>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lib/runtime/comm.h"

namespace diptych {

// An exchange waits so long for a rank that computes; one that is gone is noticed earlier.
inline constexpr std::chrono::hours kExchangeTimeout{24};

c10::intrusive_ptr<c10d::Backend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const RankGroup& group);
// Throws RunError in a build without NCCL.
c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const RankGroup& group, at::Device device);

}  // namespace diptych
