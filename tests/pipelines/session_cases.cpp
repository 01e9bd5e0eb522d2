#include "tests/pipelines/session_cases.h"

#include <algorithm>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lib/base/error.h"
#include "lib/config/family_fields.h"
#include "lib/pipelines/registry.h"
#include "lib/verify/metrics.h"
#include "lib/verify/trace_compare.h"
#include "tests/support/tiny_model.h"

namespace diptych::test {
namespace {

int worst_level(const Tensor& a, const Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  return (a.to(at::kInt) - b.to(at::kInt)).abs().max().item<int>();
}

// Four that may share forwards.
std::vector<RunConfig> mixed_requests() {
  std::vector<RunConfig> requests = {paint_request("a red fox", 5, 64, 48),
                                     edit_request("make it blue", 6), paint_request("", 7, 16, 32),
                                     edit_request("a longer text than that", 8)};
  requests[2].negative_prompt = "dull";
  requests[3].think = true;
  requests[3].text.max_think_tokens = 4;
  return requests;
}

}  // namespace

RunConfig paint_request(const std::string& prompt, std::uint64_t seed, std::int64_t width,
                        std::int64_t height) {
  RunConfig config = default_options(find_family("bagel").config()).run;
  config.model = kTinyCheckpoint;
  config.task = "t2i";
  config.inputs = {{prompt, {}}};
  config.sampling.seed = seed;
  config.sampling.width = width;
  config.sampling.height = height;
  config.sampling.steps = 6;
  config.sampling.cfg_img_scale = 1.5;
  return config;
}

RunConfig edit_request(const std::string& prompt, std::uint64_t seed) {
  RunConfig config = paint_request(prompt, seed, 48, 32);
  config.task = "edit";
  config.inputs.insert(config.inputs.begin(), {{}, kPicture});
  return config;
}

RunConfig answer_request() {
  RunConfig config = paint_request("what is this?", 3, 16, 16);
  config.task = "chat";
  config.makes = MediaKind::text;
  config.text.max_tokens = 6;
  return config;
}

SessionFixture::SessionFixture(SessionPlace place) {
  RunConfig config = paint_request("", 0, 16, 16);
  config.device = parse_device(place.device).value();
  config.dtype = parse_choice<DtypeChoice>(place.dtype).value();
  config.quantization = parse_choice<Quantization>(place.quantization).value();
  config.read_attention.default_backend = config.paint_attention.default_backend = place.attention;
  config.load_ahead = place.load_ahead;
  session = find_family("bagel").open(config, log);
}

MadeJobs make_jobs(Session& session, const std::vector<RunConfig>& requests) {
  MadeJobs jobs;
  for (const RunConfig& request : requests) {
    jobs.owned.push_back(session.make_job(request));
    jobs.group.push_back(jobs.owned.back().get());
  }
  return jobs;
}

Given SessionFixture::run(const std::vector<RunConfig>& requests) {
  Given given;
  given.pictures.resize(requests.size());
  Results results;
  results.result = [&](const Result& result, const Report&) {
    if (const auto* text = std::get_if<Text>(&result.media)) {
      given.answer = text->text;
    } else {
      given.pictures.at(result.request) = result;
    }
  };
  session->run(make_jobs(*session, requests).group, progress, results);
  return given;
}

void SessionFixture::load(const std::vector<std::vector<RunConfig>>& expected) {
  std::vector<MadeJobs> made;
  std::vector<JobGroup> groups;
  for (const std::vector<RunConfig>& requests : expected) {
    try {
      made.push_back(make_jobs(*session, requests));
      groups.push_back(made.back().group);
    } catch (const InputError&) {
    }
  }
  session->load(groups, progress);
}

std::vector<StepKindWork> SessionFixture::measure_steps(const RunConfig& request, bool measures) {
  return session->capabilities().meter->measure_steps(*session->make_job(request), measures,
                                                      progress);
}

void check_sharing(SessionPlace place) {
  SessionFixture f(place);
  const std::vector<RunConfig> requests = mixed_requests();
  for (const RunConfig& request : requests) CHECK(f.session->may_share(requests[0], request));
  const Given together = f.run(requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    CAPTURE(i);
    const Given alone = f.run({requests[i]});
    const Result& expected = alone.pictures.front();
    CHECK(together.pictures[i].seed == requests[i].sampling.seed);
    CHECK(together.pictures[i].noise_hash == expected.noise_hash);
    CHECK(together.pictures[i].plan == expected.plan);
    CHECK(worst_level(together.pictures[i].rgb(), expected.rgb()) <= 1);
    CHECK(expected.rgb().to(at::kFloat).std().item<float>() > 1);
  }
  const Given other = f.run({edit_request("make it red", 6)});
  CHECK(worst_level(together.pictures[1].rgb(), other.pictures[0].rgb()) > 1);
}

void check_repeats(SessionPlace place) {
  const std::vector<std::vector<RunConfig>> runs = {{edit_request("make it blue", 6)},
                                                    {answer_request()},
                                                    {paint_request("a red fox", 5, 64, 48)},
                                                    mixed_requests()};
  SessionFixture used(place);
  std::vector<Given> first;
  for (const auto& requests : runs) first.push_back(used.run(requests));
  for (const std::size_t i : {2, 0, 3, 1}) {
    CAPTURE(i);
    SessionFixture fresh(place);
    for (SessionFixture* f : {&used, &fresh}) {
      const Given again = f->run(runs[i]);
      CHECK(again.answer == first[i].answer);
      if (runs[i].front().answers()) continue;
      for (std::size_t p = 0; p < again.pictures.size(); ++p) {
        CHECK(again.pictures[p].rgb().equal(first[i].pictures[p].rgb()));
        CHECK(again.pictures[p].latent_hash == first[i].pictures[p].latent_hash);
      }
    }
  }
}

void check_step_graphs(SessionPlace place) {
  const auto trace = std::filesystem::temp_directory_path() /
                     fmt::format("diptych-steps-{}-{}.safetensors", place.device, getpid());
  for (const CfgMode mode : {CfgMode::batched, CfgMode::sequential}) {
    for (RunConfig request : {paint_request("a red fox", 5, 64, 48), edit_request("bluer", 6)}) {
      CAPTURE(name_of(mode));
      CAPTURE(request.task);
      request.cfg_mode = mode;
      request.sampling.steps = 12;  // guided ones and others, each beyond the second
      SessionFixture f(place);
      const Result captured = f.run({request}).pictures.front();
      CHECK(f.session->report().step_graphs == (place.device == std::string_view("cuda")));
      const Result again = f.run({request}).pictures.front();
      request.enforce_eager = true;
      const Result eager = f.run({request}).pictures.front();
      CHECK_FALSE(f.session->report().step_graphs);
      request.trace = trace;
      request.trace_filter = {"step*.latent"};
      const Result traced = f.run({request}).pictures.front();
      request.trace.clear();
      request.enforce_eager = false;
      // The last of several, which replay what the first one captured.
      request.sampling.seed -= 2;
      request.sampling.batch_count = 3;
      const Result third = f.run({request}).pictures.front();
      CHECK(third.index == 2);
      for (const Result& other : {again, eager, traced, third}) {
        CHECK(other.latent_hash == captured.latent_hash);
        CHECK(other.rgb().equal(captured.rgb()));
      }
    }
  }
  std::filesystem::remove(trace);
}

void check_step_graphs_of_many_rows(SessionPlace place) {
  std::vector<RunConfig> requests;
  for (const std::uint64_t seed : {5, 6, 7}) {
    requests.push_back(paint_request("a red fox", seed, 192, 192));
    requests.back().sampling.steps = 12;
  }
  SessionFixture f(place);
  const Given captured = f.run(requests);
  CHECK(f.session->report().step_graphs == (place.device == std::string_view("cuda")));
  for (RunConfig& request : requests) request.enforce_eager = true;
  const Given eager = f.run(requests);
  CHECK_FALSE(f.session->report().step_graphs);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    CHECK(eager.pictures[i].latent.equal(captured.pictures[i].latent));
    CHECK(eager.pictures[i].rgb().equal(captured.pictures[i].rgb()));
  }
}

namespace {

// Requests of one run, and whether a session that has run those before it finds their steps: where
// attention takes lengths from the device, and where it takes them from the host.
struct KeptRun {
  std::vector<RunConfig> requests;
  bool device = false, host = false;
};

std::vector<KeptRun> runs_that_keep(const std::filesystem::path& trace) {
  const auto paint = [](const char* prompt, std::uint64_t seed = 5) {
    return paint_request(prompt, seed, 64, 48);
  };
  RunConfig other_scale = paint("a fox"), sequential = paint("a fox"), eager = paint("a fox"),
            traced = paint("a fox"), cached = paint("a fox"), planned = paint("a fox"),
            chosen = paint("a fox"), twice = edit_request("bluer", 6);
  other_scale.sampling.cfg_text_scale = 3;
  sequential.cfg_mode = CfgMode::sequential;
  eager.enforce_eager = true;
  traced.trace = trace;
  traced.trace_filter = {"step*.latent"};
  cached.cache_mode = StepCacheMode::taylorseer;
  planned.think = true;
  planned.text.max_think_tokens = 4;
  chosen.cfg_mode = std::nullopt;
  twice.sampling.batch_count = 2;  // each reads anew
  const RunConfig red = paint("a red fox"), birds = paint("two birds above the mountain, at dusk"),
                  small = paint_request("a red fox", 5, 48, 32);
  std::vector<KeptRun> runs = {{{red}},
                               {{paint("a fox")}, true},
                               {{birds}, true},
                               {{paint("two birds above the mountain, at dusk", 6)}, true, true},
                               {{planned}},  // a longer context
                               {{red}, true, true},
                               {{other_scale}},
                               {{small}},
                               {{small}, true, true},
                               {{red}, true, true},
                               {{edit_request("bluer", 6)}},
                               {{twice}, true, true},
                               {{sequential}},  // the fifth: those of the other scale go
                               {{other_scale}},
                               {{answer_request()}},  // all go
                               {{red}},
                               {{eager}},
                               {{red}, true, true},
                               {{traced}},
                               {{red}, true, true},
                               {{cached}},
                               {{red}, true, true},
                               {{sequential}},
                               {{sequential}, true, true},
                               {{chosen}},
                               {{red, small}},
                               {{paint("a fox", 7), small}, true},
                               {{birds}, true}};
  for (KeptRun& run : runs) {
    for (RunConfig& request : run.requests) request.sampling.steps = 12;
  }
  return runs;
}

}  // namespace

void check_kept_steps(SessionPlace place) {
  const auto trace = std::filesystem::temp_directory_path() /
                     fmt::format("diptych-kept-{}-{}.safetensors", place.device, getpid());
  const std::vector<KeptRun> runs = runs_that_keep(trace);
  std::vector<std::vector<RunConfig>> expected;
  for (const KeptRun& run : runs) expected.push_back(run.requests);
  SessionFixture used(place);
  used.load(expected);
  const bool on_device = place.device == std::string_view("cuda"),
             by_host = place.attention == std::string_view("math");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    CAPTURE(i);
    const std::vector<RunConfig>& requests = runs[i].requests;
    SessionFixture fresh(place);
    const Given one = used.run(requests), other = fresh.run(requests);
    CHECK(one.answer == other.answer);
    if (requests.front().answers()) continue;
    CHECK_FALSE(fresh.session->report().kept_step_graphs);
    const bool measured = !requests.front().cfg_mode;  // either mode may be faster
    if (measured && used.session->report().cfg_mode != fresh.session->report().cfg_mode) continue;
    for (std::size_t r = 0; r < requests.size(); ++r) {
      CHECK(one.pictures[r].latent_hash == other.pictures[r].latent_hash);
      CHECK(one.pictures[r].rgb().equal(other.pictures[r].rgb()));
    }
    if (measured) continue;  // kept are the steps of one mode
    CHECK(used.session->report().attention == fresh.session->report().attention);
    CHECK(used.session->report().kept_step_graphs ==
          (on_device && (by_host ? runs[i].host : runs[i].device)));
  }
  used.session->capabilities().keeper->drop_kept_steps();
  used.run(runs.back().requests);
  CHECK_FALSE(used.session->report().kept_step_graphs);
  std::filesystem::remove(trace);
}

namespace {

std::filesystem::path trace_path(std::string_view what, SessionPlace place) {
  return std::filesystem::temp_directory_path() /
         fmt::format("diptych-{}-{}-{}.safetensors", what, place.device, getpid());
}

Tensor first_logits(SessionFixture& f, RunConfig request, SessionPlace place) {  // [vocab]
  request.trace = trace_path("logits", place);
  request.trace_filter = {"decode.logits"};
  f.run({request});
  const Tensor logits = read_trace(request.trace).at("decode.logits")[0].clone();
  std::filesystem::remove(request.trace);
  return logits;
}

}  // namespace

void check_quantization(SessionPlace place) {
  std::vector<RunConfig> requests = {paint_request("a red fox", 5, 64, 48),
                                     edit_request("make it blue", 6),
                                     paint_request("a red fox", 5, 64, 48)};
  requests.back().sampling.steps = 2;
  RunConfig text = answer_request();
  text.text.max_tokens = 12;
  // Measured on the CPU, in float32 and bfloat16: fp8 from 33.8 dB, 0.992 and 0.9982, int8 from
  // 44.7 dB, 0.9992 and 0.99985.
  struct Bound {
    std::string kind;
    double psnr, ssim, cosine;
  };
  SessionFixture plain(place);
  CHECK(plain.session->report().quantization == "none");
  for (const Bound& bound : {Bound{"fp8", 31, 0.985, 0.995}, Bound{"int8", 41, 0.998, 0.9996}}) {
    CAPTURE(bound.kind);
    SessionPlace quantised = place;
    quantised.quantization = bound.kind.c_str();
    SessionFixture f(quantised);
    CHECK(f.session->report().quantization == bound.kind);
    for (const RunConfig& request : requests) {
      CAPTURE(request.task);
      CAPTURE(request.sampling.steps);
      const Tensor found = f.run({request}).pictures.front().rgb();
      const Tensor expected = plain.run({request}).pictures.front().rgb();
      CHECK_FALSE(found.equal(expected));
      CHECK(found.equal(f.run({request}).pictures.front().rgb()));
      CHECK(psnr(found, expected) > bound.psnr);
      CHECK(ssim(found, expected) > bound.ssim);
    }
    const std::string answer = f.run({text}).answer;
    CHECK(answer == f.run({text}).answer);
    // Not the letters: of fp8's first logits the two largest are 0.13 and 0.21 apart, in bfloat16
    // and float32, and quantising has moved some by 0.5.
    const double cosine =
        difference(first_logits(f, text, place), first_logits(plain, text, place)).cosine;
    CAPTURE(cosine);
    CHECK(cosine > bound.cosine);
    CHECK(cosine < 0.99999);
  }
}

void check_draws_behind_a_plan(SessionPlace place) {
  const auto trace = std::filesystem::temp_directory_path() /
                     fmt::format("diptych-plan-{}-{}.safetensors", place.device, getpid());
  for (const std::int64_t tokens : {3, 8, 20}) {
    CAPTURE(tokens);
    SessionFixture f(place);
    RunConfig request = edit_request("make it blue", 6);
    request.think = true;
    request.text.temperature = 0.7;
    request.text.max_think_tokens = tokens;
    const Result plain = f.run({request}).pictures.front();
    request.trace = trace;
    request.trace_filter = {"decode.token_ids"};
    const Result traced = f.run({request}).pictures.front();
    CHECK(plain.plan == traced.plan);
    CHECK(plain.noise_hash == traced.noise_hash);
    request.text.max_think_tokens = tokens + 1;
    CHECK(f.run({request}).pictures.front().noise_hash != plain.noise_hash);
  }
  std::filesystem::remove(trace);
}

void check_cfg_mode_auto(SessionPlace place) {
  SessionFixture f(place);
  const auto measured = [&] {
    double sum = 0;
    for (const auto& [stage, seconds] : f.session->report().seconds) {
      if (stage == "measure") sum = seconds;
    }
    return sum;
  };
  RunConfig request = paint_request("a red fox", 5, 64, 48);
  request.cfg_mode = std::nullopt;
  const Result first = f.run({request}).pictures.front();
  const std::string mode = f.session->report().cfg_mode;
  CHECK((mode == "batched" || mode == "sequential"));
  const double once = measured();
  CHECK(once > 0);
  RunConfig named = request;
  named.cfg_mode = parse_choice<CfgMode>(mode).value();
  SessionFixture other(place);
  const Result expected = other.run({named}).pictures.front();
  CHECK(first.rgb().equal(expected.rgb()));
  CHECK(first.latent_hash == expected.latent_hash);
  CHECK(first.forwards == expected.forwards);
  CHECK(f.session->report().attention == other.session->report().attention);
  request.sampling.seed = 6;
  f.run({request});
  CHECK(f.session->report().cfg_mode == mode);
  CHECK(measured() == once);
  request.sampling.width = 96;
  f.run({request});
  CHECK(measured() > once);
  // One branch alone has nothing to choose.
  const double twice = measured();
  request.sampling.width = 32;
  request.sampling.cfg_text_scale = 1;
  f.run({request});
  CHECK(f.session->report().cfg_mode == "batched");
  CHECK(measured() == twice);
}

namespace {

KernelWork work_of(const StepKindWork& kind, const std::string& family) {
  const auto found = std::ranges::find(kind.work, family, &KernelWork::family);
  REQUIRE(found != kind.work.end());
  return *found;
}

}  // namespace

void check_timed_steps(SessionPlace place) {
  RunConfig request = paint_request("a red fox", 5, 64, 48);
  SessionFixture f(place);
  Log log(LogLevel::quiet);
  Progress progress(log, ProgressStyle::none);
  const auto seconds = [&](std::int64_t steps) {
    request.sampling.steps = steps;
    StepTimer* const timer = f.session->capabilities().timer;
    REQUIRE(timer != nullptr);
    return timer->time_steps(*f.session->make_job(request), progress);
  };
  const double few = seconds(3), many = seconds(301);
  CHECK(few > 0);
  CHECK(many > 5 * few);  // 150 times as many steps, each timed once
  const Report before = f.session->report();
  request.sampling.steps = 6;
  const Tensor behind = f.run({request}).pictures.front().latent;
  CHECK(before.updates == 0);
  SessionFixture other(place);
  CHECK(behind.equal(other.run({request}).pictures.front().latent));
}

void check_measured_steps(SessionPlace place) {
  RunConfig request = paint_request("a red fox", 5, 64, 48);
  request.sampling.steps = 12;
  SessionFixture f(place);
  const Result before = f.run({request}).pictures.front();
  std::vector<StepKindWork> kinds[2];
  for (const bool batched : {true, false}) {
    request.cfg_mode = batched ? CfgMode::batched : CfgMode::sequential;
    CAPTURE(batched);
    auto& found = kinds[batched ? 0 : 1];
    found = f.measure_steps(request, true);
    REQUIRE(found.size() == 2);
    CHECK(found[0].contexts == 2);  // guided steps come first
    CHECK(found[1].contexts == 1);
    CHECK(found[0].steps + found[1].steps == 11);
    CHECK(2 * found[0].steps + found[1].steps == before.forwards);
    for (const StepKindWork& kind : found) CHECK(kind.floor_seconds > 0);
    CHECK(work_of(found[0], "gate_up_proj gen").flops ==
          2 * work_of(found[1], "gate_up_proj gen").flops);
  }
  // 12 latent rows of 64 into 2 * 160, through 3 layers and 2 branches.
  const KernelWork batched = work_of(kinds[0][0], "gate_up_proj gen"),
                   sequential = work_of(kinds[1][0], "gate_up_proj gen");
  CHECK(batched.flops == 2.0 * 12 * 64 * 320 * 3 * 2);
  CHECK(sequential.flops == batched.flops);
  CHECK(sequential.bytes > batched.bytes);  // each branch reads the weights
  CHECK(f.measure_steps(request, false)[0].floor_seconds == 0);
  request.cfg_mode = CfgMode::batched;
  CHECK(f.run({request}).pictures.front().rgb().equal(before.rgb()));
}

}  // namespace diptych::test
