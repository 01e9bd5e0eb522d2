// Shards from flags, Slurm, torchrun and MPI.
#include "lib/batch/shards.h"

#include <map>

#include "tests/support/folder.h"

namespace diptych {
namespace {

using test::message_of;
using Variables = std::map<std::string, std::string>;

// The part of the list: "0/1" for the whole, the shard of a Slurm array, and the group of processes
// within it.
std::string shard(const Variables& variables, std::size_t ranks_per_request = 1) {
  const ListPart part = part_of_environment({variables}, ranks_per_request);
  if (part.group.count == 1) return part.shard.text();
  if (part.shard.count == 1) return part.group.text();
  return part.group.text() + " of " + part.shard.text();
}
std::string error(const Variables& variables, std::size_t ranks_per_request = 1) {
  return message_of([&] { shard(variables, ranks_per_request); });
}

TEST_CASE("--shard I/N") {
  const Shard second = parse_shard("1/3", Setting::of("shard"));
  CHECK(second.text() == "1/3");
  CHECK(second.manifest_name() == "manifest-1-of-3.jsonl");
  CHECK(parse_shard("0/1", Setting::of("shard")).manifest_name() == "manifest.jsonl");
  for (const std::size_t item : {1, 4, 7}) CHECK(second.contains(item));
  for (const std::size_t item : {0, 2, 3}) CHECK_FALSE(second.contains(item));
  for (const char* bad :
       {"", "1", "3/3", "/3", "1/", "-1/3", "1/3/4", " 1/3", "0/0", "1/9999999999"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_shard(bad, Setting::of("shard")), InputError);
  }
  CHECK(message_of([] { parse_shard("3/3", Setting::of("shard")); }) ==
        "--shard: '3/3' is no shard; expected I/N with I from 0 to N - 1, such as 0/4");
}

TEST_CASE("launchers say which of their processes this is") {
  CHECK(shard({}) == "0/1");
  CHECK(shard({{"RANK", "3"}, {"WORLD_SIZE", "8"}}) == "3/8");
  CHECK(shard({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}) == "1/2");
  CHECK(shard({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}) == "1/4");
  Variables srun = {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}};
  CHECK(shard(srun) == "2/4");
  srun.insert({{"RANK", "0"}, {"WORLD_SIZE", "1"}});  // a torchrun of one process in each task
  CHECK(shard(srun) == "2/4");
  CHECK(shard({{"RANK", ""}, {"WORLD_SIZE", ""}}) == "0/1");
  CHECK(shard({{"RANK", ""}}) == "0/1");
}

TEST_CASE("tasks of a Slurm array, wherever it begins and however it steps") {
  const auto array = [](const char* id, const char* low, const char* high, const char* step,
                        const char* count) {
    return Variables{{"SLURM_ARRAY_TASK_ID", id},
                     {"SLURM_ARRAY_TASK_MIN", low},
                     {"SLURM_ARRAY_TASK_MAX", high},
                     {"SLURM_ARRAY_TASK_STEP", step},
                     {"SLURM_ARRAY_TASK_COUNT", count}};
  };
  CHECK(shard(array("0", "0", "7", "1", "8")) == "0/8");
  CHECK(shard(array("4", "1", "4", "1", "4")) == "3/4");
  CHECK(shard(array("9", "1", "13", "4", "4")) == "2/4");
  CHECK(error(array("5", "0", "9", "1", "3")) ==
        "SLURM_ARRAY_TASK_ID: 5 of an array of 3 tasks with gaps; give --shard I/N, or an array "
        "such as 0-2");
  // Within a task, its processes.
  Variables both = array("2", "1", "3", "1", "3");
  both.insert({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}});
  CHECK(shard(both) == "1/2 of 1/3");
}

TEST_CASE("a launcher within Slurm's tasks counts its own processes") {
  const Variables torchrun = {{"RANK", "3"}, {"WORLD_SIZE", "8"}};
  const auto with_slurm = [&](const char* rank, const char* tasks) {
    Variables all = torchrun;
    all.insert({{"SLURM_PROCID", rank}, {"SLURM_NTASKS", tasks}, {"SLURM_STEP_ID", "0"}});
    return all;
  };
  CHECK(shard(with_slurm("1", "2")) == "3/8");  // a torchrun on each of two nodes
  CHECK(shard(with_slurm("0", "1")) == "3/8");  // one task that started torchrun
  Variables job_script = with_slurm("0", "8");  // which started it itself
  job_script.erase("SLURM_STEP_ID");
  CHECK(is_slurm_job_script({job_script}));
  CHECK(shard(job_script) == "3/8");
  Variables agreeing = {{"PMI_RANK", "1"},
                        {"PMI_SIZE", "2"},
                        {"SLURM_PROCID", "1"},
                        {"SLURM_NTASKS", "2"},
                        {"SLURM_STEP_ID", "0"}};
  CHECK(shard(agreeing) == "1/2");
  agreeing.insert(torchrun.begin(), torchrun.end());
  CHECK(error(agreeing) ==
        "RANK and WORLD_SIZE say 3/8, but PMI_RANK and PMI_SIZE say 1/2; give --shard I/N");
}

TEST_CASE("a Slurm job script is one process, whatever number of tasks it asked for") {
  const Variables script = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}};
  CHECK(shard(script) == "0/1");
  Variables of_array = script;
  of_array.insert({{"SLURM_ARRAY_TASK_ID", "2"}, {"SLURM_ARRAY_TASK_COUNT", "3"}});
  CHECK(shard(of_array) == "2/3");
}

TEST_CASE("processes that share a request are one group") {
  const auto torchrun = [](const char* rank, const char* world) {
    return Variables{{"RANK", rank}, {"WORLD_SIZE", world}};
  };
  CHECK(shard(torchrun("0", "8"), 8) == "0/1");
  CHECK(shard(torchrun("7", "8"), 8) == "0/1");
  CHECK(shard(torchrun("3", "8"), 4) == "0/2");
  CHECK(shard(torchrun("4", "8"), 4) == "1/2");
  CHECK(shard(torchrun("5", "8"), 2) == "2/4");
  CHECK(shard(torchrun("5", "8"), 1) == "5/8");
  CHECK(error(torchrun("3", "8"), 3) ==
        "RANK and WORLD_SIZE: found 8 process(es), expected a multiple of 3, which share one "
        "request");
  CHECK(error(torchrun("0", "2"), 4) ==
        "RANK and WORLD_SIZE: found 2 process(es), expected a multiple of 4, which share one "
        "request");
  CHECK(error({}, 2) ==
        "no launcher: found 1 process(es), expected a multiple of 2, which share one request");
  // Each task of an array has its own processes.
  Variables array = torchrun("2", "4");
  array.insert({{"SLURM_ARRAY_TASK_ID", "2"}, {"SLURM_ARRAY_TASK_COUNT", "3"}});
  CHECK(shard(array, 2) == "1/2 of 2/3");
}

TEST_CASE("values that are no ranks are refused") {
  CHECK(error({{"RANK", "3"}}) ==
        "RANK: given without WORLD_SIZE; expected both, as of a launcher, or neither");
  CHECK(error({{"RANK", ""}, {"WORLD_SIZE", "2"}}) ==
        "WORLD_SIZE: given without RANK; expected both, as of a launcher, or neither");
  CHECK(error({{"RANK", "x"}, {"WORLD_SIZE", "2"}}) ==
        "RANK: 'x' is no number from 0 to 1000000; --shard I/N overrules it");
  CHECK(error({{"RANK", "2"}, {"WORLD_SIZE", "2"}}) ==
        "RANK: 2 of WORLD_SIZE 2; expected less; --shard I/N overrules it");
}

TEST_CASE("the rank within the host picks a GPU where there is a choice") {
  const Environment local = {{{"LOCAL_RANK", "3"}, {"SLURM_LOCALID", "1"}}};
  const auto picked = [](const char* device, std::size_t gpus, const Environment& environment) {
    const auto found = device_of_rank(parse_device(device).value(), gpus, environment);
    return found ? device_name(*found) : "none";
  };
  CHECK(picked("auto", 8, local) == "cuda:3");
  CHECK(picked("cuda", 2, local) == "cuda:1");  // more processes than GPUs
  CHECK(picked("auto", 1, local) == "none");
  CHECK(picked("auto", 0, local) == "none");
  CHECK(picked("cuda:0", 8, local) == "none");
  CHECK(picked("cpu", 8, local) == "none");
  CHECK(picked("auto", 8, {}) == "none");
  CHECK(picked("auto", 8, {{{"SLURM_LOCALID", "5"}}}) == "cuda:5");
}

}  // namespace
}  // namespace diptych
