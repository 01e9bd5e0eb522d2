// A clip on its way to files: its frames, its record, its contact sheet; without a model.
#include <nlohmann/json.hpp>

#include "apps/diptych/record/frames_gap.h"
#include "apps/diptych/record/read_record.h"
#include "apps/diptych/result_files.h"
#include "lib/base/log.h"
#include "lib/config/family_fields.h"
#include "lib/media/image_read.h"
#include "lib/media/video/clip_read.h"
#include "lib/media/video/contact_sheet.h"
#include "lib/request/output_names.h"
#include "tests/support/clip_family.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using test::message_of;

constexpr std::int64_t kFrames = 6, kHeight = 32, kWidth = 48;

// A bright bar that moves over dark frames; what codecs keep.
Tensor frames() {
  Tensor all = at::full({kFrames, kHeight, kWidth, 3}, 40, at::kByte);
  for (std::int64_t i = 0; i < kFrames; ++i) all[i].slice(1, 8 * i, 8 * i + 8).fill_(200);
  return all;
}

struct Made {
  Options options = default_options(test::clip_family());
  Result result;
  Report report;
  Painted painted{&options, &result};
  Log log{LogLevel::quiet};
  Progress progress{log, ProgressStyle::none};
  int decoded = 0;  // how often

  Made() {
    options.run.task = "t2v";
    options.run.makes = MediaKind::clip;
    options.run.inputs = {{"a bar", {}}};
    result.seed = 7;
    result.latent_hash = "0123456789abcdef";
    report.weights_hash = "fedcba9876543210";
    Clip clip;
    clip.shape = {kFrames, kHeight, kWidth, FrameRate{12, 1}};
    clip.decode = [this](const std::function<void(const Tensor&)>& take) {
      ++decoded;
      const Tensor all = frames();
      take(all.slice(0, 0, 1));
      take(all.slice(0, 1, 5));
      take(all.slice(0, 5));
    };
    result.media = std::move(clip);
  }
  MadeResult made() const { return {std::span(&painted, 1), 0, &report}; }
};

bool is_built_in(ClipFormat format) {
  return facts_of(format).built_in;
}

nlohmann::json record_of(const fs::path& file) {
  return nlohmann::json::parse(record_text(read_clip_texts(file), file.string()));
}

TEST_CASE("a clip becomes a file with its frames and its record, in every format") {
  for (const ClipFormatFacts& facts : clip_formats()) {
    if (!facts.built_in) continue;
    CAPTURE(facts.name);
    const test::Folder folder;
    const fs::path file = folder / fmt::format("a{}", facts.extension);
    Made made;
    write_result(file, made.made(), made.progress);
    CHECK(made.decoded == 1);
    if (facts.format == ClipFormat::gif && !facts_of(ClipFormat::mp4).built_in)
      continue;  // libav reads it
    const Tensor read = read_clip(file);
    REQUIRE(read.sizes() == at::IntArrayRef({kFrames, kHeight, kWidth, 3}));
    const Tensor gap = (read.to(at::kInt) - frames().to(at::kInt)).abs();
    CHECK(gap.to(at::kFloat).mean().item<float>() < (facts.keeps_pixels ? 1e-9 : 4));
    const nlohmann::json record = record_of(file);
    CHECK(record["frames"] == kFrames);
    CHECK(record["fps"] == 12);
    CHECK(record["width"] == kWidth);
    CHECK(record["seed"] == 7);
    CHECK(record["requested"]["task"] == "t2v");
    CHECK(record["encoding"]["format"] == std::string(name_of(facts.format)));
    CHECK(record["encoding"].contains("crf") == facts.crf.has_value());
    CHECK(record["encoding"].contains("quality") == facts.has_quality);
    CHECK(record.contains("pixels_hash") == !facts.keeps_pixels);
    if (!facts.keeps_pixels) CHECK(record["pixels_hash"] == pixels_hash(frames()));
  }
}

TEST_CASE("the same clip gives the same file, and another one is told apart") {
  const test::Folder folder;
  const fs::path a = folder / "a.frames", b = folder / "b.frames";
  Made first, second;
  write_result(a, first.made(), first.progress);
  write_result(b, second.made(), second.progress);
  CHECK(file_sha256(a) == file_sha256(b));
  CHECK(compare_frames(a, b).pixels_differ == 0);
  auto& clip = std::get<Clip>(second.result.media);
  clip.decode = [](const std::function<void(const Tensor&)>& take) {
    Tensor all = frames();
    all[3][0][0][0] = 43;
    take(all);
  };
  write_result(b, second.made(), second.progress);  // in its place
  const FramesGap gap = compare_frames(a, b);
  CHECK(gap.frames == kFrames);
  CHECK(gap.first == 3);
  CHECK(gap_text(gap) == fmt::format("differs: 1 of 6 frames, from frame 3 on; 1 of {} pixels, by "
                                     "at most 3 levels",
                                     kFrames * kHeight * kWidth));
  nlohmann::ordered_json json;
  add_gap(json, gap);
  CHECK(json["frames_differ"] == 1);
}

TEST_CASE("what decoding throws ends the clip, and no file is there") {
  const test::Folder folder;
  Made made;
  auto& clip = std::get<Clip>(made.result.media);
  clip.decode = [](const std::function<void(const Tensor&)>& take) {
    take(frames().slice(0, 0, 2));
    throw InputError("no memory");
  };
  for (const char* name : {"a.gif", "a.frames"}) {
    CHECK(message_of([&] { write_result(folder / name, made.made(), made.progress); }) ==
          "no memory");
  }
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a contact sheet shows frames side by side") {
  const test::Folder folder;
  Made made;
  made.options.contact_sheet = folder / "sheet.png";
  write_result(folder / "a.gif", made.made(), made.progress);
  const Tensor sheet = read_image(folder / "sheet.png");
  CHECK(sheet.equal(contact_sheet(frames())));
}

TEST_CASE("a clip as bytes, for stdout and for measurements") {
  Made made;
  const ResultEncoding encoding = encoding_of(made.options, made.result.media);
  const EncodedResult encoded = encode_result(made.made(), encoding, made.progress);
  CHECK(encoded.bytes.size() > 100);
  CHECK(encoded.pixels_hash == pixels_hash(frames()));
  CHECK((std::get<ClipEncoding>(encoding).fps == FrameRate{12, 1}));
}

TEST_CASE("what a format cannot hold is known before a clip is made") {
  struct Filmed : Job {
    ClipShape shape;
    Filmed(const RunConfig& run, ClipShape of) : Job(run), shape(of) {}
    void decode_inputs() override {}
    std::optional<ClipShape> clip_shape() const override { return shape; }
  };
  Made made;
  made.options.output = "a.gif";
  const auto error = [&](ClipShape shape) {
    return message_of([&] { require_encodable(made.options, Filmed(made.options.run, shape)); });
  };
  CHECK(error({5, 32, 32, FrameRate{25, 1}}) == "no error");
  CHECK(error({5, 32, 32, FrameRate{60, 1}}).starts_with("--fps: "));
  CHECK(error({5, 32, 70'000, FrameRate{25, 1}}).starts_with("--width: "));
  if (!is_built_in(ClipFormat::mp4)) return;
  made.options.output = "a.mp4";
  CHECK(error({5, 32, 33, FrameRate{25, 1}}).starts_with("--width: "));
}

TEST_CASE("an encoding comes back from its record") {
  Options options;
  for (const ClipFormatFacts& facts : clip_formats()) {
    CAPTURE(facts.name);
    options.crf = 30;
    options.quality = 77;
    const ClipEncoding encoding = clip_encoding(options, facts.format, FrameRate{30000, 1001});
    const auto read = std::get<ClipEncoding>(read_clip_encoding(
        encoding_json(encoding), read_rate(rate_json(encoding.fps), "a"), "a: its record"));
    CHECK((read.format == encoding.format));
    CHECK(read.crf == encoding.crf);
    CHECK((read.fps == encoding.fps));
    if (facts.has_quality) CHECK(read.quality == 77);
  }
  CHECK(message_of([] { read_rate("fast", "a"); }) == "a: fps: found 'fast', expected a rate");
  CHECK(message_of([] {
          read_clip_encoding({{"format", "mp4"}, {"crf", 99}}, FrameRate{12, 1}, "a");
        }) == "a: crf: found 99, expected 1 to 51");
}

}  // namespace
}  // namespace diptych
