#include "lib/base/error.h"
#include "lib/runtime/rank_groups.h"

namespace diptych {

c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>&,
                                                  const RankGroup&, at::Device) {
  throw RunError(
      "GPUs of several processes exchange through NCCL, which this build lacks (nccl.h)");
}

}  // namespace diptych
