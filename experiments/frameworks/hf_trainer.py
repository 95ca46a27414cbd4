"""Trains a small network on handwritten digits: the Trainer of Hugging Face transformers."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, images, labels):
        x = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        logits = self.fc2(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def read_digits():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    held_out = 297
    samples = [{"images": image, "labels": label} for image, label in zip(images, labels, strict=True)]
    return samples[:-held_out], samples[-held_out:]


def accuracy(predicted):
    return {"accuracy": (predicted.predictions.argmax(1) == predicted.label_ids).mean().item()}


class Report(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics, **kwargs):
        if state.is_world_process_zero:
            epoch, mean = round(state.epoch) - 1, state.log_history[-2]["loss"]
            print(f"epoch {epoch}: loss {mean:.5f}, accuracy {metrics['eval_accuracy']:.4f}")


def main(args):
    torch.manual_seed(0)
    train_set, test_set = read_digits()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    arguments = TrainingArguments(
        output_dir=args.output,
        num_train_epochs=args.epochs,
        seed=0,
        lr_scheduler_type="constant",
        max_grad_norm=0,  # by default gradients are clipped, at a norm of 1
        logging_strategy="epoch",
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        ddp_find_unused_parameters=False,  # by default each step looks for parameters that it did not use
        disable_tqdm=True,
    )
    devices = arguments.world_size * max(1, arguments.n_gpu)
    arguments.per_device_train_batch_size = args.batch // devices
    trainer = Trainer(
        model,
        arguments,
        train_dataset=train_set,
        eval_dataset=test_set,
        compute_metrics=accuracy,
        callbacks=[Report()],
        optimizers=(optimizer, None),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    metrics = trainer.predict(test_set).metrics
    if trainer.is_world_process_zero():
        print(f"accuracy {metrics['test_accuracy']:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=60, help="digits a step, over all devices")
    parser.add_argument("--output", default="trainer_output", help="for checkpoints: none is written")
    main(parser.parse_args())
