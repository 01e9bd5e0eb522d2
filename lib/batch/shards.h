// Which part of a list this process takes, and on which GPU: from --shard, or from what Slurm,
// torchrun or MPI say in the environment. Processes that share requests take the same part.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "lib/base/choices.h"
#include "lib/base/environment.h"
#include "lib/base/setting.h"

namespace diptych {

struct Shard {
  std::size_t index = 0, count = 1;
  std::string origin;  // "--shard", "RANK and WORLD_SIZE"; "" = the whole list
  bool contains(std::size_t item) const { return item % count == index; }
  std::string text() const;           // "2/8"
  std::string manifest_name() const;  // "manifest.jsonl", "manifest-2-of-8.jsonl"
};

// What of a list this process works on.
struct ListPart {
  Shard shard;  // with a manifest of its own: --shard, or the task of a Slurm array
  // Of this shard: the group of processes among those that were started together. All groups write
  // one manifest. They take forwards of the shard in turn, so contains() is of forwards.
  Shard group;
};

// "2/8". Throws InputError "<where>: ...".
Shard parse_shard(std::string_view text, const Setting& setting);

// The shard is the task of a Slurm array (SLURM_ARRAY_TASK_ID, _MIN, _MAX, _STEP, _COUNT), the
// group that of the process within it: torchrun's RANK and WORLD_SIZE, Open MPI's
// OMPI_COMM_WORLD_RANK and _SIZE, MPICH's PMI_RANK and PMI_SIZE, or where none of these is set,
// Slurm's SLURM_PROCID and SLURM_NTASKS, except in the job script itself. `ranks_per_request`: so
// many consecutive processes work on one request together (ParallelDegrees::ranks_per_request())
// and are one group. Throws InputError for processes that are numbered differently or cannot be
// divided into such groups, an array with gaps, and values that are no such numbers.
ListPart part_of_environment(const Environment& environment, std::size_t ranks_per_request);

// This process among those that one launcher started, of the same variables; nothing for one that
// is alone. Throws InputError as above.
std::optional<Shard> process_of_environment(const Environment& environment);

// Whether the processes are those of a Slurm job script itself, which is one process whatever
// SLURM_NTASKS says: srun, which starts more, sets SLURM_STEP_ID.
bool is_slurm_job_script(const Environment& environment);

// "cuda:N" for "auto" and "cuda" when there are several GPUs and the environment has the rank
// within the host (LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID, SLURM_LOCALID); else
// nothing.
std::optional<DeviceChoice> device_of_rank(const DeviceChoice& device, std::size_t gpus,
                                           const Environment& environment);

}  // namespace diptych
