#include "lib/sampling/token_sampler.h"

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/tensor/noise.h"
#include "lib/verify/trace_compare.h"
#include "tests/sampling/token_cases.h"
#include "tests/verify/goldens.h"

namespace diptych {

TEST_CASE("greedy, sampled, top_k and top_p choose what Python chooses") {
  token_cases::check_choices(at::kCPU);
}

TEST_CASE("a generator's tokens are Python's") {
  token_cases::check_sequences(at::kCPU);
}

TEST_CASE("logits that are not finite give no token") {
  token_cases::check_not_finite(at::kCPU);
}

TEST_CASE("sampling is torch.multinomial, draw for draw") {
  at::Generator ours = cpu_generator(21), theirs = cpu_generator(21);
  RaceDraws draws(ours, 3001);
  for (std::int64_t i = 0; i < 20; ++i) {
    const Tensor logits = at::sin(at::arange(3001, at::kFloat) * (i + 1)) * 4;
    const Tensor expected = at::multinomial(at::softmax(logits / 0.7, 0), 1, false, theirs);
    CHECK(next_token(logits, {0.7}, draws.next(), 3001).equal(expected));
  }
  // Of a large vocabulary, several threads draw.
  CHECK(RaceDraws(ours, 20001).next().equal(at::empty({20001}).exponential_(1, theirs)));
  // Neither is ahead of the other: what is drawn next (start noise) agrees.
  CHECK(randn({8}, ours).equal(randn({8}, theirs)));
}

TEST_CASE("the race has torch's numbers, and the generator goes on after it") {
  at::Generator generator = cpu_generator(7);
  RaceDraws draws(generator, 640);
  const Tensor first = draws.next(), second = draws.next();
  CHECK(first.slice(0, 0, 3).equal(
      at::tensor({0.3276439309120178F, 0.319783478975296F, 1.981175422668457F})));
  CHECK(second[639].item<float>() == 0.1784026324748993F);
  CHECK(randn({2}, generator).equal(at::tensor({0.1981665939092636F, 0.5490646362304688F})));
}

TEST_CASE("races drawn ahead leave the generator behind those that are used") {
  at::Generator generator = cpu_generator(7), waiting = cpu_generator(7);
  for (at::Generator* each : {&generator, &waiting}) randn({17}, *each);  // leaves half a pair
  RacesAhead ahead(generator, 640);
  RaceDraws one_by_one(waiting, 640);
  const auto draw = [&](int count) {
    std::vector<Tensor> races;
    for (int i = 0; i < count; ++i) races.push_back(ahead.next());
    return races;
  };
  std::vector<Tensor> races = draw(8);
  for (const Tensor& race : draw(8)) races.push_back(race);
  ahead.use(8);
  CHECK(draw(8).size() == 8);
  ahead.use(3);  // the text ends in the second chunk, a third one is under way
  for (std::size_t i = 0; i < 11; ++i) CHECK(races[i].equal(one_by_one.next()));
  CHECK(generator.get_state().equal(waiting.get_state()));
  CHECK(randn({3}, generator).equal(randn({3}, waiting)));
  ahead.use(0);
  CHECK_THROWS_AS(ahead.use(14), c10::Error);  // 13 are left
}

TEST_CASE("ids come up as often as they are probable") {
  const Tensor logits = at::tensor({1.F, 0.F, 2.F, -1.F, 1.5F});
  const Tensor p = at::softmax(logits / 0.8, 0);
  RaceDraws draws(cpu_generator(3), 5);
  constexpr int kDraws = 5000;
  Tensor counts = at::zeros({5});
  for (int i = 0; i < kDraws; ++i) {
    counts[next_token(logits, {0.8}, draws.next(), 5).item<std::int64_t>()] += 1;
  }
  const Tensor deviation = (counts - kDraws * p).abs() / (kDraws * p * (1 - p)).sqrt();
  CHECK(deviation.max().item<double>() < 3.5);  // in standard deviations
}

TEST_CASE("recorded case 05c") {
  std::int64_t folders = 0;
  for (const auto& folder : test::bagel_cases()) {
    if (folder.filename() != "05c_understand_sampled") continue;
    const nlohmann::json description = test::case_json(folder);
    const NamedTensors recorded = read_trace(folder / "expected.safetensors");
    const Tensor steps = recorded.at("decode.logits_steps"), ids = recorded.at("decode.token_ids");
    const Tensor logits = recorded.at("decode.logits");
    const TokenSampling sampling{description.at("params").at("text_temperature")};
    const std::int64_t eos = description.at("new_token_ids").at("eos_token_id");
    std::int64_t compared = 0;
    RaceDraws draws(cpu_generator(description.at("seed")), logits.size(1));
    for (std::int64_t step = 0, row = 0; step < ids.size(0); ++step) {
      const Tensor race = draws.next();
      if (row == steps.size(0) || steps[row].item<std::int64_t>() != step) continue;
      // The last one chosen is the stop, which is not among the recorded ids.
      const bool last = step + 1 == ids.size(0);
      const std::int64_t expected = last ? eos : ids[step + 1].item<std::int64_t>();
      CHECK(read_token(next_token(logits[row++], sampling, race, 622)) == expected);
      ++compared;
    }
    CHECK(compared == steps.size(0));
    CHECK(compared == 4);
    ++folders;
  }
  CHECK(folders >= 1);
}

TEST_CASE("values out of range are refused by name") {
  const auto refusal = [](const TokenSampling& sampling) {
    try {
      sampling.check();
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  CHECK(refusal({-1, 0, 1}) == "--temperature: found -1, expected 0 (greedy) or at least 0.0001");
  CHECK(refusal({1e-5, 0, 1}) ==
        "--temperature: found 1e-05, expected 0 (greedy) or at least 0.0001");
  CHECK(refusal({std::nan(""), 0, 1}).starts_with("--temperature: found nan"));
  CHECK(refusal({HUGE_VAL, 0, 1}).starts_with("--temperature: found inf"));
  CHECK(refusal({1, -3, 1}) == "--top-k: found -3, expected 0 (all) or more");
  CHECK(refusal({1, 0, 0}) == "--top-p: found 0, expected more than 0 and at most 1");
  CHECK(refusal({1, 0, 1.5}) == "--top-p: found 1.5, expected more than 0 and at most 1");
  CHECK(refusal({1, 0, std::nan("")}).starts_with("--top-p: found nan"));
  CHECK(refusal({1e-4, 5, 0.1}) == "nothing was thrown");
  CHECK_THROWS_AS(next_token(at::zeros({4}), {-1}, {}, 4), InputError);
  CHECK_THROWS_AS(next_token(at::zeros({4}), {1}, {}, 4), c10::Error);  // no race
  CHECK_THROWS_AS(next_token(at::zeros({4}), {}, {}, 5), c10::Error);   // no such ids
}

}  // namespace diptych
