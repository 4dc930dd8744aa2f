"""Tune hyperparameters with a Hugging Face `Trainer`, on fractions of a GPU if there is one, else on CPUs."""

import torch
from ray import tune
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from tune_policies import CpuPolicy, GpuMemoryPolicy, PolicyScheduler

POLICY = GpuMemoryPolicy(gpu_memory="4GiB") | CpuPolicy(cpus=1)


def build_model():
    size = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(**size, num_attention_heads=2))  # random weights


def main():
    tokens = torch.randint(0, 64, (256, 8), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": int(row[0] > 31)} for row in tokens]
    trainer = Trainer(
        args=TrainingArguments("checkpoints", num_train_epochs=2, eval_strategy="epoch", report_to="none"),
        model_init=build_model,
        train_dataset=data,
        eval_dataset=data,
    )
    del trainer.args._setup_devices  # remove the driver's device, so that each trial selects its own
    best = trainer.hyperparameter_search(
        hp_space=lambda _: {"learning_rate": tune.loguniform(1e-3, 1e-1)},
        backend="ray",
        n_trials=3,
        scheduler=PolicyScheduler(POLICY),
    )
    for trial in best.run_summary.trials:
        print(f"loss {trial.last_result['objective']:.3f} in a slot of {trial.last_result['slot']}")
    print(f"best: loss {best.objective:.3f} with {best.hyperparameters}")


if __name__ == "__main__":
    main()
