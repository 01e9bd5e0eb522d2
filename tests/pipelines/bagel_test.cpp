// Guidance execution and branch sharing on the tiny checkpoint. Parity with the official code is
// goldens_test.cpp's part.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/config/family_fields.h"
#include "lib/pipelines/bagel/family_config.h"
#include "lib/pipelines/bagel/job.h"
#include "lib/pipelines/mot/cfg_mode.h"
#include "lib/pipelines/mot/packing.h"
#include "lib/pipelines/mot/session.h"
#include "lib/session/make_runtime.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

const std::filesystem::path kCheckpoint =
    std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel/checkpoint";

struct Scene : PaintRequest {
  std::vector<std::string> prompts;  // one a picture
};

Guidance guidance(double text_scale = 4, double image_scale = 1) {
  Guidance g;
  g.terms = {{kTextUncond, text_scale}, {kImgUncond, image_scale}};
  g.interval_low = 0.3;
  return g;
}

struct Fixture {
  Log log{LogLevel::quiet};
  Progress progress{log, ProgressStyle::none};
  Runtime runtime;
  std::unique_ptr<BagelCheckpoint> opened;
  BagelCheckpoint& checkpoint;

  explicit Fixture(const char* attention = "auto", const char* dtype = "float32")
      : runtime(make_runtime(run_of(attention, dtype), log)),
        opened(BagelCheckpoint::open(kCheckpoint, false, runtime)),
        checkpoint(*opened) {
    checkpoint.load();
  }

  static RunConfig run_of(const char* attention, const char* dtype) {
    RunConfig config;
    config.device = {DeviceChoice::Kind::cpu};
    config.dtype = parse_choice<DtypeChoice>(dtype).value();
    config.read_attention.default_backend = config.paint_attention.default_backend = attention;
    return config;
  }

  BagelJob job(const RunConfig& request) { return {request, checkpoint, runtime, log, {}}; }

  Scene request(std::vector<std::string> prompts, std::vector<LatentSize> sizes) const {
    Scene r;
    r.prompts = std::move(prompts);
    r.sizes = std::move(sizes);
    r.schedule = FlowSchedule::shifted(6, 3.0);
    r.guidance = guidance();
    return r;
  }

  std::unique_ptr<MotPainter> painter(const Scene& r) const {
    std::vector<std::vector<BranchContexts>> samples;
    for (const std::string& prompt : r.prompts) {
      RunConfig request;
      request.task = "t2i";
      request.inputs = {{prompt, {}}};
      samples.push_back(BagelReading::of(request, {}, checkpoint.mot()).branches());
    }
    return std::make_unique<MotPainter>(
        checkpoint.mot(), r,
        contexts(r.needed(pack_samples(std::move(samples)), false), r.block_rows()), runtime);
  }

  PrefilledContexts contexts(std::vector<BranchContexts> branches,
                             std::vector<std::int64_t> own_rows) const {
    ContextsRequest request;
    request.branches = std::move(branches);
    request.own_rows = std::move(own_rows);
    return PrefilledContexts::read(checkpoint.mot(), request, runtime);
  }

  // Drawn picture by picture from one generator, as the official code's batches.
  static Tensor noise(const Scene& r, std::uint64_t seed) {
    at::Generator generator = cpu_generator(seed);
    std::vector<Tensor> draws;
    for (const LatentSize& size : r.sizes) draws.push_back(draw_noise(size, 64, generator));
    return at::cat(draws);
  }

  Tensor latent(const Scene& r, std::uint64_t seed = 5) {
    return painter(r)->paint(noise(r, seed), nullptr, progress);
  }

  // The context of one text.
  MotContext text(std::string_view prompt) const {
    return {{TextSegment{checkpoint.mot().text_segment(prompt)}}};
  }
};

double relative_difference(const Tensor& a, const Tensor& b) {
  return (a - b).norm().item<double>() / b.norm().item<double>();
}

}  // namespace

TEST_CASE("batched and sequential guidance give the same latent") {
  for (const char* attention : {"math", "sdpa"}) {
    Fixture f(attention);
    for (const auto& [size, image_scale] :
         {std::pair{LatentSize{4, 4}, 1.0}, std::pair{LatentSize{3, 7}, 1.5},
          std::pair{LatentSize{1, 1}, 2.0}, std::pair{LatentSize{12, 12}, 1.0}}) {
      for (const std::string& prompt : {std::string(), std::string("a car made of small cars")}) {
        CAPTURE(attention);
        CAPTURE(size.h);
        Scene r = f.request({prompt}, {size});
        r.guidance = guidance(4, image_scale);
        const Tensor batched = f.latent(r);
        r.cfg_mode = CfgMode::sequential;
        const Tensor sequential = f.latent(r);
        CHECK(relative_difference(batched, sequential) < 1e-5);
        CHECK(batched.std().item<double>() > 0.1);
      }
    }
  }
}

TEST_CASE("a batch of prompts equals single runs") {
  Fixture f;
  for (const Renorm renorm : {Renorm::global, Renorm::channel, Renorm::text_channel}) {
    Scene both =
        f.request({"a red fox", "two birds above the mountain, at dusk"}, {{4, 4}, {6, 4}});
    both.guidance.renorm = renorm;
    const Tensor noise = Fixture::noise(both, 9);
    const Tensor packed = f.painter(both)->paint(noise, nullptr, f.progress);
    std::int64_t row = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      Scene one = both;
      one.prompts = {both.prompts[i]};
      one.sizes = {both.sizes[i]};
      const std::int64_t rows = one.sizes.front().rows();
      const Tensor alone = f.painter(one)->paint(noise.narrow(0, row, rows), nullptr, f.progress);
      CHECK(relative_difference(packed.narrow(0, row, rows), alone) < 1e-5);
      row += rows;
    }
  }
}

TEST_CASE("a picture does not see the other prompt of its batch, to the last bit") {
  Fixture f("math");
  Scene r = f.request({"a red fox", "two birds"}, {{4, 4}, {4, 4}});
  r.guidance.renorm = Renorm::text_channel;
  const Tensor first = f.latent(r).narrow(0, 0, 16);
  r.prompts[1] = "a car of clay";
  const Tensor again = f.latent(r).narrow(0, 0, 16);
  CHECK(first.equal(again));
}

TEST_CASE("equal contexts are computed once") {
  Fixture f;
  Scene r = f.request({"a red fox"}, {{4, 4}});
  r.schedule = FlowSchedule::shifted(50, 3.0);
  r.guidance = guidance(4, 1.5);
  r.guidance.interval_low = 0.4;  // the official code pays a third branch for it: 131 forwards
  const auto shared = f.painter(r);
  shared->paint(Fixture::noise(r, 1), nullptr, f.progress);
  CHECK(shared->forwards() == 90);
  // The empty prompt still has its two markers, so it is not the empty context.
  r.prompts = {""};
  const auto empty = f.painter(r);
  empty->paint(Fixture::noise(r, 1), nullptr, f.progress);
  CHECK(empty->forwards() == 90);
  r.guidance.terms.front().scale = 1;
  const auto plain = f.painter(r);
  plain->paint(Fixture::noise(r, 1), nullptr, f.progress);
  CHECK(plain->forwards() == 49);
}

TEST_CASE("three distinct contexts give the same velocities batched and one by one") {
  Fixture f("math");
  const std::vector<BranchContexts> branches = {
      {"cond", {f.text("a red fox under an old oak")}, {0}},
      {"text_uncond", {MotContext{}}, {}},
      {"img_uncond", {f.text("fox")}, {1}}};
  const LatentSize size = {4, 6};
  const std::vector<std::int64_t> own_rows = {size.rows() + 2};
  const PrefilledContexts contexts = f.contexts(branches, own_rows);
  REQUIRE(contexts.distinct() == 3);
  const FlowSchedule schedule = FlowSchedule::shifted(4, 3.0);
  const auto run = [&](CfgMode mode) {
    const MotDenoiser denoiser(f.checkpoint.mot(), contexts, {std::span(&size, 1)}, schedule, mode,
                               f.runtime);
    at::Generator generator = cpu_generator(3);
    return denoiser.velocities(randn({size.rows(), 64}, generator), 1, 3);
  };
  const auto batched = run(CfgMode::batched), sequential = run(CfgMode::sequential);
  REQUIRE(batched.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(relative_difference(batched[i], sequential[i]) < 1e-5);
    CHECK(relative_difference(batched[i], batched[(i + 1) % 3]) > 1e-3);
  }
}

// Passes calls on and notes the queries of their samples.
class NotingAttention final : public AttentionBackend {
 public:
  std::string_view name() const override { return backend_->name(); }
  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    return backend_->kind_unsupported(kind);
  }
  Tensor forward(const AttentionCall& call) const override {
    calls_.push_back(call.lengths->q);
    return backend_->forward(call);
  }
  const std::vector<std::vector<std::int64_t>>& calls() const { return calls_; }

 private:
  std::unique_ptr<AttentionBackend> backend_ = make_attention("math", at::kCPU);
  mutable std::vector<std::vector<std::int64_t>> calls_;
};

TEST_CASE("CFG modes are timed in the step with most branches") {
  Fixture f("math");
  auto noting = std::make_unique<NotingAttention>();
  const auto& calls = noting->calls();
  f.runtime.paint_attention = StageBackends(std::move(noting));
  const std::vector<BranchContexts> branches = {
      {"cond", {f.text("a red fox under an old oak")}, {0}}, {"text_uncond", {MotContext{}}, {}}};
  PaintRequest request;
  request.sizes = {{4, 6}};
  request.schedule = FlowSchedule::shifted(6, 3.0);
  // The last update alone.
  request.guidance = guidance();
  request.guidance.interval_low = 0;
  request.guidance.interval_high = request.schedule.times[4];
  const PrefilledContexts contexts = f.contexts(branches, request.block_rows());
  CHECK(contexts_of(request.terms_in(3), request.guidance, contexts) == 1);
  CHECK(contexts_of(request.terms_in(4), request.guidance, contexts) == 2);
  const CfgModeTimes times = time_widest_step(f.checkpoint.mot(), request, contexts, f.runtime);
  CHECK(times.batched > 0);
  CHECK(times.sequential > 0);
  // 24 latents attend in three layers, 2 markers in all but the last; of both branches at once,
  // then of one and the other. A warm-up, and one round or more.
  const std::vector<std::vector<std::int64_t>> both = {{24, 24},
                                                       {2, 2},
                                                       {24, 24},
                                                       {2, 2},
                                                       {24, 24}},
                                               one = {{24}, {2}, {24}, {2}, {24}};
  std::vector<std::vector<std::int64_t>> round;
  for (const auto& part : {both, one, one}) round.insert(round.end(), part.begin(), part.end());
  CHECK(calls.size() >= 2 * round.size());
  CHECK(calls.size() % round.size() == 0);
  std::size_t as_expected = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) as_expected += calls[i] == round[i % round.size()];
  CHECK(as_expected == calls.size());
  // 11 tokens and their 2 markers.
  CHECK(describe_step(request, contexts, 16) == "96x64, 2 contexts of up to 16 tokens");
  request.step_graphs = false;
  CHECK(describe_step(request, contexts, 16) ==
        "96x64, 2 contexts of up to 16 tokens, launched one by one");
}

TEST_CASE("a branch that shares a context gets the bits it would compute itself") {
  Fixture f("math");
  const std::vector<MotContext> text = {f.text("a red fox")};
  const LatentSize size = {4, 4};
  const std::vector<std::int64_t> own_rows = {size.rows() + 2};
  const FlowSchedule schedule = FlowSchedule::shifted(4, 3.0);
  at::Generator generator = cpu_generator(3);
  const Tensor x = randn({size.rows(), 64}, generator);
  const auto velocity = [&](const PrefilledContexts& contexts) {
    const MotDenoiser denoiser(f.checkpoint.mot(), contexts, {std::span(&size, 1)}, schedule,
                               CfgMode::sequential, f.runtime);
    return denoiser.velocities(x, 0, 1).front();
  };
  const PrefilledContexts shared =
      f.contexts({{"cond", text, {0}}, {"img_uncond", text, {1}}}, own_rows);
  CHECK(shared.distinct() == 1);
  CHECK(*shared.context_of("img_uncond") == 0);
  const PrefilledContexts own = f.contexts({{"img_uncond", text, {0}}}, own_rows);
  CHECK(velocity(shared).equal(velocity(own)));
}

TEST_CASE("the same seed gives the same bits, another seed another picture") {
  Fixture f;
  const Scene r = f.request({"a red fox"}, {{4, 6}});
  CHECK(f.latent(r, 3).equal(f.latent(r, 3)));
  CHECK_FALSE(f.latent(r, 3).equal(f.latent(r, 4)));
}

TEST_CASE("a painter takes other contexts and paints what one of their own would") {
  Fixture f;
  for (const CfgMode mode : {CfgMode::batched, CfgMode::sequential}) {
    Scene r = f.request({"a red fox", "two birds"}, {{4, 6}, {3, 5}});
    r.cfg_mode = mode;
    const auto used = f.painter(r);
    const Tensor before = used->paint(Fixture::noise(r, 3), nullptr, f.progress);
    Scene other = r;
    other.prompts = {"a fox", "two birds above the mountain, at dusk"};
    const auto fresh = f.painter(other);
    CHECK(used->contexts().laid_out_as(fresh->contexts()));
    CHECK_FALSE(used->contexts().as_long_as(fresh->contexts()));
    CHECK(used->attention() == "sdpa");
    CHECK_FALSE(used->has_captured(r));  // on the CPU there are no graphs
    used->take(fresh->contexts());
    CHECK(used->contexts().as_long_as(fresh->contexts()));
    const Tensor expected = fresh->paint(Fixture::noise(other, 3), nullptr, f.progress);
    CHECK(used->paint(Fixture::noise(other, 3), nullptr, f.progress).equal(expected));
    CHECK_FALSE(before.equal(expected));
  }
}

TEST_CASE("contexts that are laid out otherwise are told apart") {
  const Fixture f;
  const Scene r = f.request({"a red fox"}, {{4, 6}});
  const auto painter = f.painter(r);
  const auto fits = [&](const Scene& other) {
    return painter->contexts().laid_out_as(f.painter(other)->contexts());
  };
  Scene other = r;
  other.prompts = {"two birds"};
  CHECK(fits(other));
  other.prompts = {
      "two birds above the mountain and then a long text that needs more room, of words and words"};
  CHECK_FALSE(fits(other));
  other = r;
  other.guidance.terms.front().scale = 1;  // one branch
  CHECK_FALSE(fits(other));
  CHECK_FALSE(fits(f.request({"a red fox", "a fox"}, {{4, 6}, {4, 6}})));
}

RunConfig text_request(std::vector<std::string> texts) {
  RunConfig request = default_options(bagel_config()).run;
  request.task = "t2i";
  request.sampling.width = request.sampling.height = 64;
  for (std::string& text : texts) request.inputs.push_back({std::move(text), {}});
  return request;
}

TEST_CASE("a plan without a word is read like any other") {
  Fixture f;
  RunConfig request = text_request({"a fox"});
  request.think = true;
  request.sampling.cfg_text_scale = request.sampling.cfg_img_scale = 2;  // all branches are needed
  const BagelJob job = f.job(request);
  BagelTurn turn(job);
  const auto contexts = [&] { return turn.branches; };
  const auto before = contexts();
  REQUIRE(before.size() == 3);
  CHECK(before[0].samples[0].segments.size() == 2);  // the system's text and the prompt
  turn.keep_plan({});
  const auto after = contexts();
  REQUIRE(after[0].samples[0].segments.size() == 3);
  CHECK((after[0].samples[0].segments[2] ==
         Segment(TextSegment{{f.checkpoint.bos, f.checkpoint.eos}})));
  CHECK((after[1].samples == before[1].samples));
  CHECK((after[2].samples == before[2].samples));
  turn.seed(1);
  CHECK_FALSE(turn.plan.has_value());
  CHECK((contexts()[0].samples == before[0].samples));
}

TEST_CASE("branches that guidance never asks for are not read, but by a trace") {
  Fixture f;
  RunConfig request = text_request({"a fox"});
  const auto read = [&](double text, double image) {
    request.sampling.cfg_text_scale = text;
    request.sampling.cfg_img_scale = image;
    std::vector<std::string_view> names;
    const BagelJob job = f.job(request);
    for (const BranchContexts& branch : job.branches) names.push_back(branch.name);
    return names;
  };
  using Names = std::vector<std::string_view>;
  CHECK(read(4, 2) == Names{kCond, kTextUncond, kImgUncond});
  CHECK(read(4, 1) == Names{kCond, kTextUncond});
  CHECK(read(1, 1) == Names{kCond});
  request.think = true;  // and so after the plan
  const BagelJob job = f.job(request);
  BagelTurn turn(job);
  turn.keep_plan({});
  CHECK(turn.branches.size() == 1);
  request.trace = "trace.safetensors";
  CHECK(read(1, 1) == Names{kCond, kTextUncond, kImgUncond});
}

TEST_CASE("the caches that a text is written with are known before") {
  Fixture f;
  RunConfig request = text_request({"a fox"});
  const auto rows = [&](std::int64_t kept) {
    return MotMemoryPlanner::text_rows(f.job(request), kept);
  };
  CHECK(rows(0) == 0);
  CHECK(rows(2048) == 2048);  // kept from an earlier text
  request.think = true;
  request.text.max_think_tokens = 5;
  const std::int64_t read = f.job(request).branches.front().samples.front().length();
  CHECK(rows(0) == read + 1024);
  CHECK(rows(2048) == read + 2048);

  f.checkpoint.load_head();
  const std::optional<OpenedDrafter> no_drafter;
  TextWriter writer(f.checkpoint.mot(), no_drafter, f.runtime);
  CHECK(writer.capacity() == 0);
  const BagelJob job = f.job(request);
  std::vector<BranchContexts> branches = job.branches;
  branches.resize(1);
  const PrefilledContexts prefilled = f.contexts(std::move(branches), {0});
  at::Generator generator = cpu_generator(3);
  writer.write(prefilled, 0, job.text, generator, "think", nullptr, f.progress);
  CHECK(prefilled.cache().capacity() + writer.capacity() == read + 1024);
  request.text.max_think_tokens = 1024;
  CHECK(rows(writer.capacity()) == read + 2048);
}

TEST_CASE("positions are counted over all that is read, and what follows it") {
  Fixture f;
  RunConfig request = text_request({"a fox", "under an oak"});
  request.text.max_tokens = request.text.max_think_tokens = 10;
  const auto refusal = [&] {
    try {
      f.job(request);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  const std::int64_t read =
      BagelReading::of(request, {}, f.checkpoint.mot()).branches()[0].samples[0].position();
  std::int64_t& most = f.checkpoint.model.language_model.config.max_position_embeddings;
  most = read + 1;  // the picture takes one
  CHECK(refusal() == "none");
  most = read;
  CHECK(refusal() ==
        fmt::format("--prompt: {} positions are read in all, expected at most {}", read, read - 1));
  request.makes = MediaKind::text;
  most = read + 10;
  CHECK(refusal() == "none");
  most = read + 9;
  CHECK(refusal() ==
        fmt::format("--max-tokens: {} of the model's {} positions are read, which leaves fewer for "
                    "the text: 9",
                    read, read + 9));
  request.makes = MediaKind::picture;
  request.think = true;
  most = 100000;
  CHECK(refusal() == "none");
  const BagelJob job = f.job(request);
  most = 300;
  request.text.max_think_tokens = 300;
  CHECK(refusal().starts_with("--max-think-tokens: "));
  std::string text;  // that by itself may be read
  for (int i = 0; i < 300; ++i) text += " word" + std::to_string(i);
  most = 100000;
  BagelTurn turn(job);
  GeneratedText written;
  written.ids = f.checkpoint.tokenizer->encode(text);
  turn.keep_plan(written);
  REQUIRE(*turn.plan == text);
  most = std::ssize(f.checkpoint.mot().text_segment(text)) + 1;
  std::string found = "none";
  try {
    check_positions(job, turn.branches, /*planned=*/true, f.checkpoint.mot());
  } catch (const InputError& error) {
    found = error.what();
  }
  CHECK(found.starts_with("--max-think-tokens: "));
  CHECK(found.find(" positions are read in all") != std::string::npos);
}

TEST_CASE("limits of the model are named") {
  Fixture f;
  CHECK(f.checkpoint.latent_size(192, 64).w == 12);
  CHECK_THROWS_WITH_AS(f.checkpoint.latent_size(208, 64),
                       doctest::Contains("--width: found 208, expected a multiple of 16 up to 192"),
                       InputError);
  CHECK_THROWS_WITH_AS(f.checkpoint.latent_size(64, 72), doctest::Contains("--height: found 72"),
                       InputError);
  CHECK_THROWS_WITH_AS(f.checkpoint.latent_size(64, 72), doctest::Contains("64 or 80"), InputError);
  CHECK_THROWS_WITH_AS(f.checkpoint.mot().text_segment(std::string(80000, '7')),
                       doctest::Contains("tokens, expected at most"), InputError);
  CHECK_THROWS_WITH_AS(BagelCheckpoint::open("/nowhere", false, f.runtime),
                       doctest::Contains("/nowhere"), InputError);
}

TEST_CASE("random weights have the widths of the folder's autoencoder, else the released ones") {
  Fixture f;
  const FluxVaeConfig named = BagelCheckpoint::open(kCheckpoint, true, f.runtime)->vae.config;
  CHECK(named.ch == f.checkpoint.vae.config.ch);
  CHECK(named.ch_mult == f.checkpoint.vae.config.ch_mult);
  CHECK(named.ch < 128);
  CHECK(BagelCheckpoint::open("", true, f.runtime)->vae.config.ch == 128);
}

TEST_CASE("bfloat16 stays near float32") {
  Fixture f32, bf16("auto", "bfloat16");
  const Scene r = f32.request({"a red fox"}, {{4, 4}});
  const double difference = relative_difference(bf16.latent(r), f32.latent(r));
  CHECK(difference > 0);
  CHECK(difference < 0.05);
}

TEST_CASE("a picture's size alone tells how many rows it will have") {
  const Fixture f;
  const BagelConfig& config = f.checkpoint.model.config;
  const ImageTransforms transforms = ImageTransforms::of(config);
  for (const auto& [height, width] : {std::pair{64, 64}, {1, 1}, {33, 250}, {640, 31}, {97, 96}}) {
    CAPTURE(height);
    CAPTURE(width);
    const BagelImage sized = BagelImage::sized({height, width}, transforms, config);
    const BagelImage read =
        BagelImage::prepare(at::zeros({height, width, 3}, at::kByte), transforms, config);
    CHECK((sized.latent == read.latent));
    CHECK((sized.patches == read.patches));
    CHECK(!sized.vae_pixels.defined());
  }
}

}  // namespace diptych
