#include <c10/cuda/CUDAGuard.h>
#define USE_C10D_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "lib/runtime/rank_groups.h"

namespace diptych {

c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const RankGroup& group, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = kExchangeTimeout;
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, static_cast<int>(group.index),
                                                          static_cast<int>(group.size), options);
  nccl->setBoundDeviceId(device);
  nccl->eagerConnectSingleDevice(device);  // not in the first step
  return nccl;
}

}  // namespace diptych
