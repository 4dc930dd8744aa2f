"""Train a Hugging Face transformer on two GPUs if available, else on one GPU, else on two CPUs."""

import ray.train
import torch
from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer

from tune_policies import CpuPolicy, GpuPolicy
from tune_policies.trainers import build_torch_trainer

POLICY = GpuPolicy(num_workers=2) | GpuPolicy(num_workers=1) | CpuPolicy(num_workers=2)


def train_on_worker():
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    size = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(**size, num_attention_heads=2))  # random weights
    tokens = torch.randint(0, 64, (256, 8), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": int(row[0] > 31)} for row in tokens]
    args = TrainingArguments(
        output_dir="checkpoints",
        num_train_epochs=2,
        learning_rate=1e-2,
        save_strategy="epoch",
        logging_strategy="epoch",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),  # otherwise, each worker on a CPU would train a separate model
    )
    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[RayTrainReportCallback()])
    prepare_trainer(trainer).train()


def main(storage_path=None):
    run_config = ray.train.RunConfig(storage_path=storage_path)
    return build_torch_trainer(train_on_worker, plan=POLICY, run_config=run_config).fit()


if __name__ == "__main__":
    print(f"training loss: {main().metrics['loss']:.3f}")
