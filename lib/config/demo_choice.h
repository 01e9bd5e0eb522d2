// Which of the demos runs where neither a stage config nor a model is named.
#pragma once

#include <filesystem>
#include <string>

#include "lib/config/given_texts.h"
#include "lib/config/resolve.h"

namespace diptych {

// The first demo whose family has a task for what is asked for, else the first one that makes what
// the name of the output says, else that reads all kinds of inputs, else the first of all. `only`:
// the family that a flag names; null where none does. Null where there is no such demo.
const std::filesystem::path* find_demo(const Sources& sources, const GivenTexts& given,
                                       const FamilyConfig* only);

// The task chooses between the demos, so a slip is held against the tasks of all. Throws InputError
// for one that no demo has.
void refuse_task_of_no_demo(const Sources& sources, const GivenTexts& given);

// For a family without a demo, which `flag` chose: there are no other weights for it. Throws
// InputError naming the flag.
void require_dummy_weights(const Sources& sources, const GivenTexts& given,
                           const FamilyConfig& family, const std::string& flag);

}  // namespace diptych
