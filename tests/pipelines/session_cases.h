// Requests of all kinds to one session, and what it must hold to on every device.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "lib/session/session.h"

namespace diptych::test {

struct SessionPlace {
  const char *device, *dtype;
  const char* quantization = "none";
  const char* attention = "auto";
  bool load_ahead = false;
};

RunConfig paint_request(const std::string& prompt, std::uint64_t seed, std::int64_t width,
                        std::int64_t height);
RunConfig edit_request(const std::string& prompt, std::uint64_t seed);
RunConfig answer_request();

struct Given {
  std::vector<Result> pictures;  // by request
  std::string answer;
};

// Jobs of one session, which run together.
struct MadeJobs {
  std::vector<std::unique_ptr<Job>> owned;
  JobGroup group;
};
MadeJobs make_jobs(Session& session, const std::vector<RunConfig>& requests);

struct SessionFixture {
  Log log{LogLevel::quiet};
  Progress progress{log, ProgressStyle::none};
  std::unique_ptr<Session> session;
  explicit SessionFixture(SessionPlace place);
  Given run(const std::vector<RunConfig>& requests);
  // Runs of these requests are expected; those that no job can be made of are left out.
  void load(const std::vector<std::vector<RunConfig>>& expected);
  std::vector<StepKindWork> measure_steps(const RunConfig& request, bool measures);
};

// float32: pictures that share forwards are those of one by one.
void check_sharing(SessionPlace place);
// What a session did before changes no bit of what it does next, alone or shared.
void check_repeats(SessionPlace place);
// Captured, launched one by one, and looked at by a trace, a denoise step makes the same bits.
void check_step_graphs(SessionPlace place);
// The same of three pictures of 192x192 in one forward, whose 864 guided rows and 146 queries take
// the kernels of many.
void check_step_graphs_of_many_rows(SessionPlace place);
// Quantised: pictures and a text near those without, the same again, told in the report.
void check_quantization(SessionPlace place);
// A sampled plan takes as many draws as it has tokens, however it is decoded: the start noise
// behind it is the same with a trace, which waits for each token, and without.
void check_draws_behind_a_plan(SessionPlace place);

// `auto` runs one of the modes, chosen once for steps of one kind, and paints what that mode asked
// for by name paints, to the last bit.
void check_cfg_mode_auto(SessionPlace place);

// Where more runs are expected, the steps that one has captured serve the next: the bits, and the
// attention that is told of, are those of a session that has done nothing before.
void check_kept_steps(SessionPlace place);

// What steps have to do adds up over batched and sequential steps, their floors are measured, and
// neither changes a bit of what is painted.
void check_timed_steps(SessionPlace place);
void check_measured_steps(SessionPlace place);

}  // namespace diptych::test
